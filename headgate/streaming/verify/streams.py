"""One stream, read from its log: its commits, its decoders and its dead letters. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import DeadEntry, dead_entries, dead_letter_home
from headgate.checkpoints.log.records import OpenRecord
from headgate.checkpoints.log.state import Head
from headgate.errors import InvalidInput
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.kinds import DEFAULT
from headgate.streaming.decode.provenance import Provenance, provenance_of
from headgate.streaming.replay import REPLAY
from headgate.streaming.verify.history import CommittedRange, Era, History, eras_of, history_of
from headgate.table.table import Table


@dataclass(frozen=True)
class StreamLog:
    """A stream's log, and what it says about its decoders."""

    head: Head
    history: History
    decoders: tuple[tuple[OpenRecord, Provenance], ...]
    """The decoders of the query's starts."""
    replays: tuple[tuple[OpenRecord, Provenance], ...]
    """The decoders of replays of its dead letters."""
    default: Era
    """Used where no record names a decoder."""
    letters: tuple[DeadEntry, ...]
    """The dead letters that were committed when the stream's head was read."""

    @classmethod
    def of(cls, table: Table, head: Head, decode: Decoder | None, registry_auth: str | None) -> StreamLog:
        """Read a stream. `decode` is used if the log does not record the decoder, `registry_auth` for a recorded
        registry.
        """
        home = table.home
        history = history_of(table, head)
        said: list[tuple[OpenRecord, Provenance]] = []
        for record in history.opens:
            made = provenance_of(record.decoder or {}, registry_auth)
            said.append((record, replace(made, decoder=made.decoder or decode)))
        replays = tuple(one for one in said if one[0].query_id.startswith(REPLAY))
        said = [one for one in said if one not in replays]
        if decode is not None:
            default = Era(0, 0, Provenance("given", home.schema, decode), False)
        elif said:
            default = Era(0, 0, said[0][1], True)
        else:
            default = Era(0, 0, _json_of(table), True)
        logs = dead_letter_home(home, head.stream)
        letters = tuple(
            entry
            for entry in dead_entries(home, CommitLog(home.records, head.stream, home.uri).read())
            if entry.position <= head.listed.get(logs.shard(f"{entry.log} of {head.stream}").id, -1)
        )
        return cls(head, history, tuple(said), replays, default, letters)

    def eras(self, part: CommittedRange) -> tuple[Era, ...]:
        """How the records of a range were decoded."""
        return eras_of(part, self.decoders, self.default)

    def others(self) -> int | None:
        """Number of rows that it wrote and that cannot be made again; None if its log does not contain the number."""
        rows = 0
        for batch in self.history.batches:
            earlier = [made for record, made in self.decoders if record.sequence < batch.sequence]
            made = earlier[-1] if earlier else self.default.made
            if not batch.is_replay and (batch.opaque or not made.can_judge):
                rows += batch.rows
        cannot = any(not made.can_judge for made in (self.default.made, *(made for _, made in self.decoders)))
        return rows if self.history.complete or not cannot else None


def _json_of(table: Table) -> Provenance:
    try:
        return Provenance(DEFAULT.name, table.home.schema, DEFAULT.for_columns(table.schema, None, None))
    except InvalidInput:
        return Provenance("(not recorded)", table.home.schema, None)
