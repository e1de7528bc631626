"""The reader, step by step, and the checkpoint that it may make of what it read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from headgate.shards.manifest.model import Manifest
from tests.explorer.exploring import Action, Move
from tests.explorer.rules import Rules
from tests.explorer.slots import found, there
from tests.explorer.stream_bounds import Bounds, Piece, replaced
from tests.explorer.stream_parts import (
    Known,
    Log,
    Wal,
    Written,
    as_state,
    folded,
    read_log,
    replay_after,
    rows_in,
    rows_of,
    shard_id,
    visible_entries,
)
from tests.explorer.stream_promises import committed_rows


class InBase(NamedTuple):
    """What the base has of one shard."""

    rows: tuple[int, ...] = ()
    mark: int = 0


Base: TypeAlias = tuple[InBase, ...]


class Reader(NamedTuple):
    """What the reader has of the whole table."""

    known: Known | None = None
    batches: int = 0
    """How many were committed when the log was read."""
    base: Base | None = None
    done: bool = False


class Tail(NamedTuple):
    """What the reader has of one shard."""

    manifest: Manifest | None = None
    absent: bool = False
    """The shard was not there yet."""
    entries: tuple[Written, ...] = ()
    end: int | None = None
    """The first position that was free."""
    done: bool = False


class Checkpoint(NamedTuple):
    """The record of a checkpoint."""

    shards: tuple[tuple[Manifest, int] | None, ...]
    """Per shard the manifest and where its tail ended."""
    fold: bytes
    base: Base
    batches: int
    whole: bool = False
    """Whether whoever put it has seen that nothing is missing. Until then it is none."""


class Reading(Piece):
    """Each manifest, the log, each entry and the base is one step; shards are read in parallel."""

    def __init__(self, bounds: Bounds, rules: Rules, *, pins: bool) -> None:
        super().__init__(bounds, rules)
        self.pins = pins
        self.held = (*self.per_shard("wal"), *self.per_shard("manifest"), *self.per_shard("left"))
        """What a checkpoint may name."""

    def actions(self) -> Iterator[Action]:
        tails = self.per_shard("tail")
        for s in self.shards:
            yield Action(("reader", f"manifest{s}", *tails), partial(self._manifest, s), _goes_on)
            yield Action(("reader", f"wal{s}", f"manifest{s}", *tails), partial(self._tail, s), _goes_on)
        yield Action(("reader", "log", "fold", *tails), self._log, _goes_on)
        yield Action(("reader", "base", *tails), self._base, _goes_on)
        yield Action(("reader", "log", *tails), self._judge, _goes_on)
        if self.pins:
            yield Action(("reader", "checkpoint", *tails), self._put, lambda reader: reader.done)
            yield Action(("checkpoint", *self.held), self._look, lambda one: one is not None and not one.whole)

    def _is_turn(self, phase: str, reader: Reader, tails: Sequence[Tail]) -> bool:
        done = {
            "manifests": all(tail.manifest is not None or tail.absent for tail in tails),
            "log": reader.known is not None,
            "tails": all(tail.done for tail in tails),
            "base": reader.base is not None,
        }
        order = self.rules.snapshot_order
        return not done[phase] and all(done[earlier] for earlier in order[: order.index(phase)])

    def _manifest(self, s: int, reader: Reader, manifest: Manifest | None, *tails: Tail) -> Iterator[Move]:
        if self._is_turn("manifests", reader, tails) and tails[s] == Tail():
            what = "none" if manifest is None else f"replay_after {manifest.replay_after}"
            read = Tail(absent=True, done=True) if manifest is None else Tail(manifest)
            label = (f"the reader reads the manifest of shard {s}:", what)
            yield Move(label, (reader, manifest, *replaced(tails, s, read)))

    def _log(self, reader: Reader, log: Log, fold: bytes | None, *tails: Tail) -> Iterator[Move]:
        if self._is_turn("log", reader, tails):
            known = read_log(log, fold)
            assert known is not None
            read = reader._replace(known=known, batches=len(log.committed))
            yield Move(("the reader reads the log up to", as_state(known).sequence), (read, log, fold, *tails))

    def _tail(self, s: int, reader: Reader, wal: Wal, manifest: Manifest, *tails: Tail) -> Iterator[Move]:
        tail, known = tails[s], reader.known
        if tail.done or known is None or tail.manifest is None or not self._is_turn("tails", reader, tails):
            return
        flushed = tail.manifest.replay_after
        if not self.rules.visible(as_state(known).shards).covers(shard_id(s), flushed):
            return
        at, fault = flushed + 1 + len(tail.entries), None
        if tail.end is None and there(wal, at):
            read, label = tail._replace(entries=(*tail.entries, found(wal, at))), ("reads entry", at)
        elif tail.end is None and at >= len(wal):
            read, label = tail._replace(end=at), ("finds the end", at)
        else:
            # An entry is missing below another, or all were read: the manifest tells what that means.
            lost = tail.end is None or isinstance(self._entries(s, known, tail), str)
            if self.rules.is_stale(flushed, manifest.replay_after, None if lost else tail.end):
                return
            fault = f"invariant 5: the reader misses an entry of shard {s}" if lost else None
            read, label = tail._replace(done=True), ("sees that it may go on, replay_after", manifest.replay_after)
        yield Move((f"the reader of shard {s}", *label), (reader, wal, manifest, *replaced(tails, s, read)), fault)

    def _entries(self, s: int, known: Known, tail: Tail) -> list[tuple[int, Written]] | str:
        assert tail.manifest is not None
        start = tail.manifest.replay_after + 1
        return visible_entries(self.rules, (*(None,) * start, *tail.entries), s, as_state(known).shards, start)

    def _base(self, reader: Reader, base: Base, *tails: Tail) -> Iterator[Move]:
        if self._is_turn("base", reader, tails):
            label = ("the reader reads the base, which has generations up to", *(one.mark for one in base))
            yield Move(label, (reader._replace(base=base), base, *tails))

    def _judge(self, reader: Reader, log: Log, *tails: Tail) -> Iterator[Move]:
        """The snapshot is complete: every batch that the log listed is in it whole, and nothing else."""
        if reader.base is None or reader.known is None or not all(tail.done for tail in tails):
            return
        fault, listed = None, as_state(reader.known).shards
        for s, (tail, in_base) in enumerate(zip(tails, reader.base, strict=True)):
            if tail.manifest is None:
                if shard_id(s) in listed:
                    return  # A shard that appeared meanwhile: from the beginning.
                continue
            entries = self._entries(s, reader.known, tail)
            assert not isinstance(entries, str)
            rows = self._rows(tail.manifest, in_base, entries)
            if rows is None:
                return
            expected = committed_rows(log.committed[: reader.batches], s)
            if rows != expected:
                fault = f"invariant 1: the reader sees rows {rows} of shard {s}, the log that it read has {expected}"
        yield Move(("the reader is done",), (reader._replace(done=True), log, *tails), fault)

    def _rows(self, manifest: Manifest, in_base: InBase, entries: list[tuple[int, Written]]) -> list[int] | None:
        """None: the base is ahead of the manifest."""
        left = self.rules.uncompacted(manifest.sstables, manifest.generation, in_base.mark)
        if left is None:
            return None
        fresh = [row for _, entry in entries for row in rows_of(self.bounds.plans, entry)]
        return sorted([*in_base.rows, *rows_in(replace(manifest, sstables=left)), *fresh])

    # -- checkpoints ---------------------------------------------------------------------

    def _put(self, reader: Reader, checkpoint: Checkpoint | None, *tails: Tail) -> Iterator[Move]:
        if checkpoint is None and reader.known is not None and reader.base is not None:
            fold = folded(self.rules, reader.known, tuple(replay_after(tail.manifest) for tail in tails))
            shards = tuple(None if tail.manifest is None else (tail.manifest, tail.end or 0) for tail in tails)
            made = Checkpoint(shards, fold, reader.base, reader.batches)
            yield Move(("the checkpoint is put",), (reader, made, *tails))

    def _look(self, checkpoint: Checkpoint, *held: Any) -> Iterator[Move]:
        if self._missing(checkpoint, *held) is None:
            yield Move(("the checkpoint is whole",), (checkpoint._replace(whole=True), *held))

    def _missing(self, checkpoint: Checkpoint, *held: Any) -> str | None:
        wals, rest = self.halves(held)
        manifests, left = self.halves(rest)
        for s, pinned in enumerate(checkpoint.shards):
            if pinned is None:
                continue
            manifest, end = pinned
            if gone := [at for at in range(manifest.replay_after + 1, end) if not there(wals[s], at)]:
                return f"entry {gone[0]} of shard {s}"
            there_are = {*left[s], *(one.path for one in manifests[s].sstables)}
            if lost := [one.generation for one in manifest.sstables if one.path not in there_are]:
                return f"generation {lost[0]} of shard {s}"
        return None

    def checkpoint_fault(self, checkpoint: Checkpoint | None, log: Log, *held: Any) -> str | None:
        """A checkpoint that was taken shows its rows for ever."""
        if checkpoint is None or not checkpoint.whole:
            return None
        if (missing := self._missing(checkpoint, *held)) is not None:
            return f"invariant 5: {missing} is gone, and a checkpoint names it"
        wals, listed = self.halves(held)[0], as_state(Known(checkpoint.fold)).shards
        for s, pinned in enumerate(checkpoint.shards):
            if pinned is None:
                continue
            manifest, end = pinned
            entries = visible_entries(self.rules, wals[s], s, listed, manifest.replay_after + 1, end)
            if isinstance(entries, str):
                return f"invariant 5: {entries}"
            rows = self._rows(manifest, checkpoint.base[s], entries)
            expected = committed_rows(log.committed[: checkpoint.batches], s)
            if rows != expected:
                return f"invariant 1: the checkpoint shows rows {rows} of shard {s}, it had {expected}"
        return None


def _goes_on(reader: Reader) -> bool:
    return not reader.done
