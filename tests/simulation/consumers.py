"""Pins of consumers, as bytes say them: which record the log must have, and who may be too late for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

if TYPE_CHECKING:
    from tests.simulation.codec import TableBytes

Pin: TypeAlias = Mapping[str, Any]
FOR_EVER = 1e6
"""Seconds that no schedule lasts: a pin that is held so long does not expire."""


@dataclass
class ConsumerPins:
    """The newest pin of each consumer, and what was garbage already when the consumer began to hold without a break: a
    collection that was under way then may delete that at any time.
    """

    pins: dict[str, Pin] = field(default_factory=dict)
    _floors: dict[str, tuple[dict[UUID, int], dict[str, int]]] = field(default_factory=dict)
    """Per consumer the shards' replay_after, and the sequences of the streams' newest folds."""

    def put(self, pin: Pin, table: TableBytes) -> None:
        """A pin was put."""
        consumer = pin["consumer"]
        before = self.pins.get(consumer)
        if before is not None and before["number"] > pin["number"]:
            return
        if before is None or not _goes_on(before, pin):
            flushed = {shard_id: one.manifest.replay_after for shard_id, one in table.shards.items() if one.manifest}
            self._floors[consumer] = flushed, {stream: max(one.folds, default=0) for stream, one in table.logs.items()}
        self.pins[consumer] = pin

    def read(self, stream: str) -> int:
        """The highest record of a log that a consumer has read."""
        return max((one["done"].get(stream, 0) for one in self.pins.values()), default=0)

    def is_one_too_late(self, table: TableBytes) -> bool:
        """Whether what a consumer has not read is gone, and could go."""
        return any(self._is_too_late(pin, *self._floors[name], table) for name, pin in self.pins.items())

    def _is_too_late(self, pin: Pin, flushed: Mapping[UUID, int], folded: Mapping[str, int], table: TableBytes) -> bool:
        for stream, log in table.logs.items():
            for sequence in range(pin["done"].get(stream, 0) + 1, max((*log.records, *log.folds, 0)) + 1):
                record = log.records.get(sequence)
                if record is None and sequence <= folded.get(stream, 0):
                    return True
                for part in () if record is None or record["kind"] != "batch" else record["shards"].values():
                    shard_id = UUID(part["shard_id"])
                    there, floor = table.shards[shard_id].entries, flushed.get(shard_id, 0)
                    if any(at <= floor and at not in there for at in part["positions"]):
                        return True
        return False


def _goes_on(before: Pin, pin: Pin) -> bool:
    """Whether what the pin holds was held without a break."""
    return before["expires_after"] >= FOR_EVER and all(
        number <= pin[kept].get(name, 0) for kept in ("done", "positions") for name, number in before[kept].items()
    )
