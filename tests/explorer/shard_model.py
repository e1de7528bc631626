"""Direct writers of one shard: every manifest version, the WAL, flushes and garbage collection of both.

A row is acknowledged when its PUT has landed. With `in_flight` a put is a request that the store carries out at any
later time, and an answer that arrives at any time after that, or never; meanwhile its writer may learn elsewhere that
it is fenced, and then says what became of the row (R24). One transition per store operation, with the omissions that
`stream_model` explains; here as well reading the manifest again and replaying by it are one step, and a MemTable is
frozen when its flush reads the manifest. The hint is native's: it is there only to show what reading by it would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import pyarrow as pa

from headgate.errors import HeadgateError
from headgate.shards.manifest.decisions import Fate, Slot
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.shards.wal.entry import Entry, EntryHeader
from headgate.shards.wal.tailer import WalEntry
from tests.explorer.exploring import Action, Check, Model, Move, Witness
from tests.explorer.rules import Rules
from tests.explorer.slots import Slots, first_free, found, put, taken, there, without

PRODUCT = Rules()
SHARD = UUID(int=1)
_SCHEMA = pa.schema([])
_HOLE = "invariant 4: the WAL has a hole"


@dataclass(frozen=True)
class Bounds:
    """How much may happen."""

    name: str
    writers: int = 2
    rows: int = 1
    """That each writer puts, one entry each."""
    flushes: int = 0
    collects: bool = False
    hint: bool = False
    in_flight: bool = False
    looks: bool = True
    """False: the tip is looked for from what the manifest says alone, as where nothing was appended before."""


class Written(NamedTuple):
    """An entry; without a row it is a barrier."""

    epoch: int
    writer: int
    row: int | None = None

    @property
    def entry_id(self) -> str:
        what = "barrier" if self.row is None else f"row {self.row}"
        return f"{what} of writer {self.writer}"


Wal: TypeAlias = Slots[Written]
Manifests: TypeAlias = Slots[Manifest]
"""By version; the first is 1."""


class Flush(NamedTuple):
    """A MemTable on its way into the manifest: the version to be put, or the one that was."""

    step: str
    manifest: Manifest


class Request(NamedTuple):
    """A put under way: sent, stored, refused. It outlives its writer."""

    at: int
    row: int
    state: str = "sent"


class Writer(NamedTuple):
    step: str = "look"
    looked: int = 0
    """Where the WAL ended before the claim; forgotten once the search for the tip has its start from it."""
    claim: Manifest | None = None
    """The version to be put, or the one that was."""
    at: int = 0
    """Where to look for the tip; the tip; the barrier; the next position."""
    known: Manifest | None = None
    """The manifest as it was re-read, or as the last flush has left it."""
    memory: tuple[tuple[int, int], ...] = ()
    """Positions and rows that no SSTable covers."""
    flush: Flush | None = None
    put: int = 0
    request: Request | None = None
    turn: int = 0
    """How many opens had returned when its own did."""

    @property
    def epoch(self) -> int:
        assert self.claim is not None
        return self.claim.epoch


def shard_model(bounds: Bounds, rules: Rules = PRODUCT) -> Model:
    """Every writer may open at any time, and stall or die anywhere."""
    return _ShardModel(bounds, rules).model()


def claim_id(w: int) -> str:
    return f"claim of writer {w}"


class _ShardModel:
    def __init__(self, bounds: Bounds, rules: Rules) -> None:
        self.bounds = bounds
        self.rules = rules

    def model(self) -> Model:
        writers = [f"writer{w}" for w in range(self.bounds.writers)]
        start: dict[str, Any] = dict.fromkeys(writers, Writer())
        start |= {"wal": (), "manifests": (), "hint": 0, "opens": 0, "acknowledged": (), "flushes": self.bounds.flushes}
        start |= {"failed": (), "unknown": ()}
        actions = []
        for w, name in enumerate(writers):
            before, shard = writers[w - 1 : w] if w else [], ("wal", "manifests", "hint")
            actions += [
                Action((name, "wal", *before), partial(self._look, w), _is_at("look")),
                Action((name, "manifests", "hint"), partial(self._read, w), _is_at("read")),
                Action((name, "manifests", "hint"), partial(self._claim, w), _is_at("claim", "list", "hint")),
                Action((name, *shard), partial(self._bar, w), _is_at("tip", "barrier")),
                Action((name, *shard), partial(self._replay_early, w), _is_at("replay")),
                Action((name, *shard, "opens"), partial(self._re_read, w), _is_at("re-read")),
                Action((name, "manifests", "hint", "flushes"), partial(self._flush, w), _is_at("open")),
            ]
            if self.bounds.in_flight:
                told = ("acknowledged", "failed", "unknown")
                actions += [
                    Action((name,), partial(self._send, w), _is_at("open")),
                    Action((name, "wal", "opens"), partial(self._store, w), lambda one: one.request is not None),
                    Action((name, "wal", *told), partial(self._answer, w), _is_at("open", "settling")),
                    Action((name, "manifests", "hint"), partial(self._learn, w), _is_at("open")),
                    Action((name, *told), partial(self._give_up, w), _is_at("settling")),
                ]
            else:
                actions.append(Action((name, "wal", "opens", "acknowledged"), partial(self._put, w), _is_at("open")))
        if self.bounds.collects:
            actions.append(Action(("wal", "manifests", "hint"), self._collect))
            actions.append(Action(("manifests",), self._collect_manifests))
        checks = [Check(("wal", "manifests", "hint", "acknowledged", "failed"), self._fault)]
        return Model(self.bounds.name, start, actions, checks, list(self._witnesses(writers)))

    def _latest(self, manifests: Manifests, hint: int) -> Manifest | None:
        versions = taken(manifests)
        return found(manifests, self.rules.latest_version(versions, hint)) if versions else None

    # -- opening -------------------------------------------------------------------------

    def _look(self, w: int, writer: Writer, wal: Wal, *before: Writer) -> Iterator[Move]:
        if not any(one.step == "look" for one in before):  # Writers are alike: they come in order.
            end = len(wal) if self.bounds.looks else 0
            looked = writer._replace(step="read", looked=end)
            yield Move((f"writer {w} looks: the WAL ends at", end), (looked, wal, *before))

    def _read(self, w: int, writer: Writer, manifests: Manifests, hint: int) -> Iterator[Move]:
        previous = self._latest(manifests, hint)
        claim = self.rules.claimed(previous, SHARD, owner=None, claim_id=claim_id(w), write_id=f"write {w}", spec_id=0)
        start = max(writer.looked, self.rules.search_start(previous, None))
        looked = 0 if self.rules.replays_to_barrier else writer.looked
        begun = writer._replace(step="claim", claim=claim, at=start, looked=looked)
        yield Move((f"writer {w} reads manifest", claim.version - 1), (begun, manifests, hint))

    def _claim(self, w: int, writer: Writer, manifests: Manifests, hint: int) -> Iterator[Move]:
        claim = writer.claim
        assert claim is not None
        if writer.step == "claim":
            if not there(manifests, claim.version):
                label = f"writer {w} puts manifest {claim.version}: epoch {claim.epoch} is claimed"
                yield Move((label,), (writer._replace(step="list"), put(manifests, claim.version, claim), hint))
        elif writer.step == "list":
            if taken(manifests)[-1] == claim.version:
                listed = writer._replace(step="hint" if self.bounds.hint else "tip")
                yield Move((f"writer {w} lists the manifests",), (listed, manifests, hint))
            elif not self.rules.is_ghost(self._latest(manifests, hint), claim.epoch, claim_id(w)):
                listed = writer._replace(step="tip")
                yield Move((f"writer {w} lists the manifests and was overtaken",), (listed, manifests, hint))
        else:
            done = writer._replace(step="tip")
            yield Move((f"writer {w} writes the hint", claim.version), (done, manifests, claim.version))

    def _bar(self, w: int, writer: Writer, wal: Wal, manifests: Manifests, hint: int) -> Iterator[Move]:
        rest = (manifests, hint)
        if writer.step == "tip":
            free = first_free(wal, writer.at)
            if free is not None:
                looked = writer._replace(step="barrier" if self.rules.barrier_first else "replay", at=free)
                yield Move((f"writer {w} finds the tip", free), (looked, wal, *rest))
            elif not self._is_fenced(w, writer, manifests, hint):
                yield Move((f"writer {w} looks for the tip",), (writer, wal, *rest), _HOLE)
            return
        barrier = Written(writer.epoch, w)
        if not there(wal, writer.at):
            label = (f"writer {w} puts its barrier at", writer.at)
            yield Move(label, (writer._replace(step="re-read"), put(wal, writer.at, barrier), *rest))
        elif self._in_the_way(barrier, found(wal, writer.at)) is Slot.STALE:
            label = (f"writer {w}: the barrier steps over", writer.at)
            yield Move(label, (writer._replace(at=writer.at + 1), wal, *rest))

    def _is_fenced(self, w: int, writer: Writer, manifests: Manifests, hint: int) -> bool:
        stored = self._latest(manifests, hint)
        return stored is None or not self.rules.held_by(stored, writer.epoch, claim_id(w))

    def _in_the_way(self, mine: Written, stored: Written) -> Slot:
        return self.rules.entry_in_the_way(
            entry_id=mine.entry_id, epoch=mine.epoch, stored_id=stored.entry_id, stored_epoch=stored.epoch
        )

    def _replay_early(self, w: int, writer: Writer, wal: Wal, manifests: Manifests, hint: int) -> Iterator[Move]:
        """The seeded order: replay, then the barrier."""
        stored = self._latest(manifests, hint)
        assert stored is not None
        if (memory := self._replayed(writer, wal, stored)) is not None:
            replayed = writer._replace(step="barrier", known=stored, memory=memory)
            label = (f"writer {w} replays rows", [row for _, row in memory])
            yield Move(label, (replayed, wal, manifests, hint))

    def _re_read(self, w: int, writer: Writer, wal: Wal, manifests: Manifests, hint: int, opens: int) -> Iterator[Move]:
        rest, stored = (wal, manifests, hint), self._latest(manifests, hint)
        if stored is None or not self.rules.claim_stands(stored, writer.epoch, claim_id(w), writer.at):
            return
        known, memory = writer.known, writer.memory
        if self.rules.barrier_first:
            known, found_rows = stored, self._replayed(writer, wal, stored)
            if found_rows is None:
                if not self._is_fenced(w, writer, manifests, hint):
                    yield Move((f"writer {w} replays",), (writer, *rest, opens), _HOLE)
                return
            memory = found_rows
        opened = writer._replace(step="open", known=known, memory=memory, at=writer.at + 1, turn=opens + 1)
        label = (f"writer {w} has the shard, in memory are rows", [row for _, row in memory])
        yield Move(label, (opened, *rest, opens + 1))

    def _replayed(self, writer: Writer, wal: Wal, manifest: Manifest) -> tuple[tuple[int, int], ...] | None:
        """What lies below the tip and in no SSTable. None: a successor's entry, or a missing one."""
        end = writer.at if self.rules.replays_to_barrier else writer.looked
        entries = range(manifest.replay_after + 1, end)
        if not all(there(wal, at) and found(wal, at).epoch <= writer.epoch for at in entries):
            return None
        return _rows(wal, entries)

    # -- writing ---------------------------------------------------------------------------

    def _put(self, w: int, writer: Writer, wal: Wal, opens: int, acknowledged: tuple[int, ...]) -> Iterator[Move]:
        if writer.put >= self.bounds.rows:
            return
        row = 10 * (w + 1) + writer.put
        entry = Written(writer.epoch, w, row)
        if not there(wal, writer.at):
            memory = (*writer.memory, (writer.at, row))
            done = writer._replace(at=writer.at + 1, memory=memory, put=writer.put + 1)
            fault = "invariant 3: a predecessor's put succeeds after its successor's open has returned"
            yield Move(
                (f"writer {w} puts row {row} at", writer.at),
                (done, put(wal, writer.at, entry), opens, tuple(sorted((*acknowledged, row)))),
                fault if writer.turn < opens else None,
            )
        elif self._in_the_way(entry, found(wal, writer.at)) is Slot.STALE:
            memory = (*writer.memory, *_rows(wal, [writer.at]))
            above = writer._replace(at=writer.at + 1, memory=memory)
            yield Move((f"writer {w} steps over", writer.at), (above, wal, opens, acknowledged))

    def _send(self, w: int, writer: Writer) -> Iterator[Move]:
        if writer.request is None and writer.put < self.bounds.rows:
            request = Request(writer.at, 10 * (w + 1) + writer.put)
            yield Move((f"writer {w} sends row {request.row} for", request.at), (writer._replace(request=request),))

    def _store(self, w: int, writer: Writer, wal: Wal, opens: int) -> Iterator[Move]:
        request = writer.request
        assert request is not None
        if request.state != "sent":
            return
        if there(wal, request.at):
            refused = writer._replace(request=request._replace(state="refused"))
            yield Move((f"the store refuses row {request.row} of writer {w} at", request.at), (refused, wal, opens))
            return
        fault = "invariant 3: a predecessor's put succeeds after its successor's open has returned"
        yield Move(
            (f"the store puts row {request.row} of writer {w} at", request.at),
            (
                writer._replace(request=request._replace(state="stored")),
                put(wal, request.at, Written(writer.epoch, w, request.row)),
                opens,
            ),
            fault if writer.turn < opens else None,
        )

    def _answer(
        self, w: int, writer: Writer, wal: Wal, acknowledged: tuple[int, ...], *named: tuple[int, ...]
    ) -> Iterator[Move]:
        request, settling = writer.request, writer.step == "settling"
        if request is None or request.state == "sent":
            return
        at, row = request.at, request.row
        if request.state == "stored":
            done = writer._replace(request=None, at=at + 1, put=writer.put + 1, memory=(*writer.memory, (at, row)))
            done = done._replace(step="over", memory=()) if settling else done
            rows = tuple(sorted((*acknowledged, row)))
            yield Move((f"writer {w} acknowledges row {row} at", at), (done, wal, rows, *named))
        elif not there(wal, at):
            return  # Vanished: whoever cannot tell stands still here, or gives up.
        else:
            slot = self._in_the_way(Written(writer.epoch, w, row), found(wal, at))
            if slot is Slot.STALE and not settling:
                memory = (*writer.memory, *_rows(wal, [at]))
                above = writer._replace(request=None, at=at + 1, memory=memory)
                yield Move((f"writer {w} steps over", at), (above, wal, acknowledged, *named))
            else:
                yield from self._name(w, writer, slot, (wal, acknowledged), *named)

    def _learn(self, w: int, writer: Writer, manifests: Manifests, hint: int) -> Iterator[Move]:
        """A flush finds its writer fenced. Without a request there is nothing to say."""
        if writer.request is not None and self._is_fenced(w, writer, manifests, hint):
            settling = writer._replace(step="settling", memory=(), flush=None)
            yield Move((f"writer {w} learns that it is fenced",), (settling, manifests, hint))

    def _give_up(
        self, w: int, writer: Writer, acknowledged: tuple[int, ...], *named: tuple[int, ...]
    ) -> Iterator[Move]:
        """The retry deadline has passed."""
        if writer.request is not None:
            yield from self._name(w, writer, None, (acknowledged,), *named)

    def _name(
        self, w: int, writer: Writer, slot: Slot | None, rest: tuple[Any, ...], *named: tuple[int, ...]
    ) -> Iterator[Move]:
        failed, unknown = named
        assert writer.request is not None
        row = writer.request.row
        over = writer._replace(step="over", memory=(), flush=None)
        told = self.rules.fate(sent=True, slot=slot)
        if told is Fate.FAILED:
            yield Move((f"writer {w} names row {row} not durable",), (over, *rest, (*failed, row), unknown))
        elif told is Fate.UNKNOWN:
            yield Move((f"writer {w} names row {row} unknown",), (over, *rest, failed, (*unknown, row)))

    def _flush(self, w: int, writer: Writer, manifests: Manifests, hint: int, left: int) -> Iterator[Move]:
        flush, known = writer.flush, writer.known
        assert known is not None
        if flush is None:
            stored = self._latest(manifests, hint)
            assert stored is not None
            if not left or not writer.memory or not self.rules.held_by(stored, writer.epoch, claim_id(w)):
                return
            rows, last = [row for _, row in writer.memory], writer.memory[-1][0]
            sstable = SsTable(known.generation, "_".join(map(str, (w, *rows))))
            changed = self.rules.covered(stored, sstable, started_from=known.replay_after, last_position=last)
            if changed is not None:
                changed = replace(changed, version=stored.version + 1)
                begun = writer._replace(memory=(), flush=Flush("put", changed))
                label = (f"writer {w}: an SSTable of rows", *rows, "upon manifest", stored.version)
                yield Move(label, (begun, manifests, hint, left - 1))
        elif flush.step == "put":
            if not there(manifests, flush.manifest.version):
                stored_ = put(manifests, flush.manifest.version, flush.manifest)
                done = writer._replace(flush=flush._replace(step="list"))
                label = (
                    f"writer {w} puts manifest {flush.manifest.version}: replay_after",
                    flush.manifest.replay_after,
                )
                yield Move(label, (done, stored_, hint, left))
        else:
            highest = taken(manifests)[-1] == flush.manifest.version
            if highest or not self._is_fenced(w, writer, manifests, hint):
                done = writer._replace(known=flush.manifest, flush=None)
                hint = flush.manifest.version if highest and self.bounds.hint else hint
                yield Move((f"writer {w} believes its flush",), (done, manifests, hint, left))

    # -- garbage -----------------------------------------------------------------------------

    def _collect(self, wal: Wal, manifests: Manifests, hint: int) -> Iterator[Move]:
        latest = self._latest(manifests, hint)
        if latest is None:
            return
        for at in self.rules.collectable_wal(taken(wal), [latest]):
            if found(wal, at).row is not None or not self.rules.keeps_fence("barrier"):
                yield Move(("garbage collection takes entry", at), (without(wal, at), manifests, hint))

    def _collect_manifests(self, manifests: Manifests) -> Iterator[Move]:
        """Claims too, as earlier releases did: the product keeps them now, which allows less."""
        for version in self.rules.collectable_manifests(taken(manifests))[:1]:
            yield Move(("garbage collection takes manifest", version), (without(manifests, version),))

    # -- what must hold ----------------------------------------------------------------------

    def _fault(
        self, wal: Wal, manifests: Manifests, hint: int, acknowledged: tuple[int, ...], failed: tuple[int, ...]
    ) -> str | None:
        latest = self._latest(manifests, hint)
        flushed = 0 if latest is None else latest.replay_after
        if holes := [at for at in range(flushed + 1, len(wal)) if not there(wal, at)]:
            return f"invariant 4: position {holes[0]} is free, replay_after is {flushed}, the tip {len(wal)}"
        highest = max((found(wal, at).epoch for at in taken(wal)), default=0)
        if latest is not None and highest > latest.epoch:
            return f"whoever holds epoch {latest.epoch} is fenced by epoch {highest}, which never held the shard"
        entries = [_as_entry(at, found(wal, at)) for at in range(flushed + 1, len(wal))]
        try:
            counted = list(self.rules.visible({}).visible_entries(SHARD, entries, flushed + 1))
        except HeadgateError as error:
            return f"invariant 1: {error}"
        rows = [int(row) for one in (latest.sstables if latest else ()) for row in one.path.split("_")[1:]]
        rows += [row for one in counted if (row := found(wal, one.position).row) is not None]
        if visible := set(failed) & set(rows):
            return f"R24: rows {sorted(visible)} were named not durable and are visible"
        expected = sorted(set(rows) | set(acknowledged)) if self.bounds.in_flight else list(acknowledged)
        if sorted(rows) != expected:
            return f"invariant 1: the shard shows rows {sorted(rows)}, acknowledged are {list(acknowledged)}"
        if first_free(wal, self.rules.search_start(latest, None)) is None:
            return "invariant 5: the next writer would find a hole"
        return None

    def _witnesses(self, writers: Sequence[str]) -> Iterator[Witness]:
        everything = self.bounds.writers * self.bounds.rows
        if self.bounds.in_flight:
            yield Witness("a row is named not durable", ("failed",), bool)
            yield Witness("a row is named unknown", ("unknown",), bool)
            yield Witness(
                "a row that was named unknown is stored",
                ("unknown", "wal"),
                lambda rows, wal: any(one is not None and one.row in rows for one in wal),
            )
        yield Witness("every row is acknowledged", ("acknowledged",), lambda rows: len(rows) == everything)
        yield Witness("rows are flushed", ("manifests",), lambda all: any(one and one.sstables for one in all))
        yield Witness(
            "an entry is collected", ("wal",), lambda wal: not all(there(wal, at) for at in range(1, len(wal)))
        )
        yield Witness("a claimed version is collected", ("manifests",), lambda all: len(all) > 2 and all[1] is None)
        yield Witness("a claim was never the latest", ("manifests",), _has_ghost)


def _is_at(*steps: str) -> Callable[[Writer], bool]:
    return lambda writer: writer.step in steps


def _rows(wal: Wal, positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((at, row) for at in positions if (row := found(wal, at).row) is not None)


def _as_entry(at: int, written: Written) -> WalEntry:
    return WalEntry(at, Entry(EntryHeader(written.epoch, written.row is None, _SCHEMA), (), 0))


def _has_ghost(manifests: Manifests) -> bool:
    """Two versions with one epoch under different claims."""
    claims = {(one.epoch, one.claim_id) for one in manifests if one is not None}
    return len({epoch for epoch, _ in claims}) < len(claims)
