"""A reader that takes its time, and a checkpoint made of what it read, while a stream runs, is flushed and collected.

The reader reads manifest by manifest, then the log, then entry by entry, then the base, as the product does; that it
begins anew is left out: it might as well have begun later. Compaction is two steps: the base takes an SSTable in and
marks it, then the manifest drops it. SSTables that no manifest names are collected unless a checkpoint pins them; a
reader without one is protected by their age alone (R12), so what it would miss by that is not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headgate.checkpoints.gc import rules as garbage
from headgate.checkpoints.snapshots.checkpoint import PinnedShard
from headgate.shards.manifest.model import Manifest
from tests.explorer.exploring import Action, Check, Model, Move, Witness
from tests.explorer.rules import LONG_AGO, NOW, Rules
from tests.explorer.slots import found, taken, without
from tests.explorer.snapshot_reader import Base, Checkpoint, InBase, Reader, Reading, Tail
from tests.explorer.stream_batches import Batches
from tests.explorer.stream_bounds import Bounds
from tests.explorer.stream_model import PRODUCT, first_state
from tests.explorer.stream_opening import Opening
from tests.explorer.stream_parts import Log, Wal, rows_in
from tests.explorer.stream_promises import log_fault, shard_fault, witnesses
from tests.explorer.stream_upkeep import Collecting, Upkeep


@dataclass(frozen=True)
class ReadBounds(Bounds):
    """How much may happen while somebody reads."""

    compactions: int = 0
    pins: bool = False
    """Whether what was read becomes a checkpoint."""


def snapshot_model(bounds: ReadBounds, rules: Rules = PRODUCT) -> Model:
    """A stream as in `stream_model`, with a base, and one reader."""
    shards = range(bounds.shards)
    reading = Reading(bounds, rules, pins=bounds.pins)
    start = {**first_state(bounds), "reader": Reader(), "base": (InBase(),) * len(shards), "checkpoint": None}
    start |= {f"tail{s}": Tail() for s in shards} | {f"left{s}": () for s in shards}
    start |= {"compactions": bounds.compactions}
    pieces = (
        Opening(bounds, rules),
        Batches(bounds, rules),
        Upkeep(bounds, rules),
        reading,
        _Compacting(bounds, rules),
    )
    checks = [Check(("log", "fold"), log_fault)]
    for s in shards:
        parts = (f"wal{s}", f"manifest{s}", "log", "fold", "base")
        checks.append(Check(parts, partial(_shard_fault, rules, bounds, s)))
    if bounds.pins:
        checks.append(Check(("checkpoint", "log", *reading.held), reading.checkpoint_fault))
    seen = [*witnesses(bounds.plans, bounds.shards), *_witnesses()]
    return Model(bounds.name, start, [action for piece in pieces for action in piece.actions()], checks, seen)


class _Compacting(Collecting):
    """The base takes SSTables in; what nobody names any more is collected, and checkpoints are asked."""

    def actions(self) -> Iterator[Action]:
        for s in self.shards:
            manifest, left = f"manifest{s}", f"left{s}"
            yield Action((manifest, "base", "compactions"), partial(self._compact, s))
            yield Action((manifest, "base", left), partial(self._drop, s))
            if self.bounds.collects:
                yield Action((f"wal{s}", manifest, "checkpoint"), partial(self._unpinned, s))
                yield Action((left, manifest, "checkpoint"), partial(self._sstables, s), bool)
        if self.bounds.collects:
            yield Action(("log", "fold"), self._records)

    def _compact(self, s: int, manifest: Manifest | None, base: Base, left: int) -> Iterator[Move]:
        for sstable in manifest.sstables[:1] if manifest and left else ():
            if sstable.generation > base[s].mark:
                assert manifest is not None
                rows = (*base[s].rows, *rows_in(replace(manifest, sstables=(sstable,))))
                grown = (*base[:s], InBase(rows, sstable.generation), *base[s + 1 :])
                label = (f"the base takes in generation {sstable.generation} of shard {s}",)
                yield Move(label, (manifest, grown, left - 1))

    def _drop(self, s: int, manifest: Manifest | None, base: Base, left: tuple[str, ...]) -> Iterator[Move]:
        if manifest is None:
            return
        kept = self.rules.uncompacted(manifest.sstables, manifest.generation, base[s].mark)
        if kept is not None and kept != manifest.sstables:
            dropped = tuple(one.path for one in manifest.sstables if one not in kept)
            label = (f"the manifest of shard {s} drops what the base has",)
            yield Move(label, (replace(manifest, sstables=kept), base, (*left, *dropped)))

    def _unpinned(self, s: int, wal: Wal, manifest: Manifest | None, checkpoint: Checkpoint | None) -> Iterator[Move]:
        live = [] if manifest is None else [manifest]
        for at in self.rules.collectable_wal(taken(wal), live, _pins(s, checkpoint)):
            if found(wal, at).task is not None:
                label = (f"garbage collection takes entry {at} of shard {s}",)
                yield Move(label, (without(wal, at), manifest, checkpoint))

    def _sstables(
        self, s: int, left: tuple[str, ...], manifest: Manifest, checkpoint: Checkpoint | None
    ) -> Iterator[Move]:
        folders = dict.fromkeys(left, LONG_AGO)
        for path in garbage.collectable_sstables(folders, [manifest], _pins(s, checkpoint), NOW):
            kept = tuple(one for one in left if one != path)
            yield Move((f"garbage collection takes an SSTable of shard {s}",), (kept, manifest, checkpoint))


def _pins(s: int, checkpoint: Checkpoint | None) -> list[PinnedShard]:
    pinned = None if checkpoint is None else checkpoint.shards[s]
    return [] if pinned is None else [PinnedShard(*pinned)]


def _shard_fault(
    rules: Rules, bounds: Bounds, s: int, wal: Wal, manifest: Manifest | None, log: Log, fold: bytes | None, base: Base
) -> str | None:
    """As without a base; and the base is never ahead of the manifest that is read with it."""
    if manifest is not None:
        left = rules.uncompacted(manifest.sstables, manifest.generation, base[s].mark)
        if left is None:
            return f"invariant 1: the base is ahead of the manifest of shard {s}"
        manifest = replace(manifest, sstables=left)
    return shard_fault(rules, bounds.plans, s, wal, manifest, log, fold, base[s].rows)


def _witnesses() -> Iterator[Witness]:
    yield Witness("the reader is done", ("reader",), lambda reader: reader.done)
    yield Witness("the table has moved on from what was read", ("reader", "log"), _is_behind)
    yield Witness("a checkpoint is taken", ("checkpoint",), lambda one: one is not None and one.whole)
    yield Witness("the base has rows", ("base",), lambda base: any(one.rows for one in base))


def _is_behind(reader: Reader, log: Any) -> bool:
    return reader.done and reader.batches < len(log.committed)
