"""Who may delete an SSTable, WAL entries and what a pin holds, while anybody sleeps (R20).

One shard with rows in its WAL; writers (ours, or native, which checks the epoch alone) that claim, flush and compact; a
collection; a checkpoint that is taken. One step is one store operation. A sleep of any length is a party that is not
chosen, and every object is old enough at every moment, so that no age protects anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias
from uuid import UUID

from headgate.checkpoints.snapshots.checkpoint import PinnedShard
from headgate.shards.manifest.model import Manifest, SsTable
from tests.explorer.exploring import Action, Check, Model, Move, Witness
from tests.explorer.rules import Rules

SHARD = UUID(int=20)


@dataclass(frozen=True)
class DeletionBounds:
    """How much may happen."""

    name: str
    writers: str = "oo"
    """One letter each: ours, native."""
    rows: int = 2
    flushes: int = 2
    jobs: int = 1
    """Flushes that one writer may have at once."""
    collections: int = 2
    compactions: int = 0
    pins: bool = False


class Made(NamedTuple):
    """An SSTable: rows above `low`, up to `high`."""

    sstable: SsTable
    low: int
    high: int


class Flush(NamedTuple):
    step: str = "idle"
    began: Manifest | None = None
    made: Made | None = None
    upon: Manifest | None = None


class Writer(NamedTuple):
    epoch: int = 0
    flushes: tuple[Flush, ...] = ()


class Collection(NamedTuple):
    step: str = "list"
    listed: tuple[str, ...] = ()
    seen: Manifest | None = None
    held: Manifest | None = None
    """What the pin names, where there was one."""
    todo: tuple[str | int, ...] = ()
    """Paths of SSTables, then positions."""


class Pin(NamedTuple):
    step: str = "read"
    manifest: Manifest | None = None


class Disk(NamedTuple):
    """What there is, beside the manifest."""

    sstables: tuple[Made, ...] = ()
    wal: tuple[int, ...] = ()
    base: int = 0
    """Rows up to this are in the base,"""
    mark: int = 0
    """which has taken in this generation."""

    def there(self, path: str) -> bool:
        return any(made.sstable.path == path for made in self.sstables)


def _has_lost_an_sstable(disk: Disk, *writers: Writer) -> bool:
    waiting = (flush for writer in writers for flush in writer.flushes if flush.step in ("look", "commit"))
    return any(flush.made is not None and not disk.there(flush.made.sstable.path) for flush in waiting)


Budget: TypeAlias = tuple[int, int]
"""Flushes and compactions that are left."""


def deletion_model(bounds: DeletionBounds, rules: Rules) -> Model:
    """The model within these bounds."""
    return _Deletion(bounds, rules).model()


@dataclass(frozen=True)
class _Deletion:
    bounds: DeletionBounds
    rules: Rules

    def model(self) -> Model:
        bounds = self.bounds
        start: dict[str, object] = {
            "manifest": Manifest(version=1, epoch=0, shard_id=SHARD),
            "disk": Disk(wal=tuple(range(1, bounds.rows + 1))),
            "budget": (bounds.flushes, bounds.compactions),
            "pin": Pin() if bounds.pins else Pin("none"),
        }
        actions = [Action(("pin", "manifest"), self._pin)]
        for number, kind in enumerate(bounds.writers):
            start[f"writer {number}"] = Writer(flushes=(Flush(),) * bounds.jobs)
            before = () if number == 0 else (f"writer {number - 1}",)
            actions.append(Action((f"writer {number}", "manifest", *before), partial(self._claim, number)))
            step = partial(self._write, number, kind == "o")
            actions.append(Action((f"writer {number}", "manifest", "disk", "budget"), step))
        for number in range(bounds.collections):
            start[f"collection {number}"] = Collection()
            step = partial(self._collect, number)
            actions.append(Action((f"collection {number}", "manifest", "disk", "pin"), step))
        return Model(
            bounds.name, start, actions, [Check(("manifest", "disk", "pin"), self._fault)], list(self._witnesses())
        )

    def _witnesses(self) -> Iterator[Witness]:
        yield Witness("WAL is collected", ("disk",), lambda disk: len(disk.wal) < self.bounds.rows)
        writers = tuple(f"writer {number}" for number in range(len(self.bounds.writers)))
        yield Witness(
            "an SSTable is collected that a flush has not committed", ("disk", *writers), _has_lost_an_sstable
        )
        if self.bounds.pins:
            yield Witness("a checkpoint is taken", ("pin",), lambda pin: pin.step == "taken")

    # -- writers -------------------------------------------------------------------------

    def _claim(self, number: int, writer: Writer, manifest: Manifest, *before: Writer) -> Iterator[Move]:
        if writer.epoch or any(not one.epoch for one in before):
            return
        claimed = self.rules.claimed(manifest, SHARD, owner=None, claim_id=f"c{number}", write_id="", spec_id=0)
        yield Move(
            (f"writer {number} claims epoch", claimed.epoch), (Writer(claimed.epoch, writer.flushes), claimed, *before)
        )

    def _write(
        self, number: int, ours: bool, writer: Writer, manifest: Manifest, disk: Disk, budget: Budget
    ) -> Iterator[Move]:
        if not writer.epoch:
            return
        for job, flush in enumerate(writer.flushes):
            for label, then, changed, left, spent in self._flush(
                number, ours, writer.epoch, flush, manifest, disk, budget
            ):
                jobs = (*writer.flushes[:job], then, *writer.flushes[job + 1 :])
                yield Move((f"writer {number}", label), (Writer(writer.epoch, jobs), changed, left, spent))
        if ours and manifest.epoch == writer.epoch and manifest.sstables:
            oldest = manifest.sstables[0]
            made = next((one for one in disk.sstables if one.sstable == oldest), None)
            if oldest.generation <= disk.mark:
                kept = self.rules.uncompacted(manifest.sstables, manifest.generation, disk.mark)
                assert kept is not None
                dropped = replace(manifest, version=manifest.version + 1, sstables=kept)
                yield Move((f"writer {number} drops", oldest.path), (writer, dropped, disk, budget))
            elif budget[1] and made is not None:
                taken_in = disk._replace(base=made.high, mark=oldest.generation)
                yield Move(
                    (f"writer {number} compacts", oldest.path), (writer, manifest, taken_in, (budget[0], budget[1] - 1))
                )

    def _flush(
        self, number: int, ours: bool, epoch: int, flush: Flush, manifest: Manifest, disk: Disk, budget: Budget
    ) -> Iterator[tuple[str, Flush, Manifest, Disk, Budget]]:
        if flush.step == "idle":
            if budget[0] and manifest.epoch == epoch:
                for high in range(manifest.replay_after + 1, self.bounds.rows + 1):
                    path = f"{number}x{budget[0]}" + (f"_epoch_{epoch}" if ours else "") + f"_gen_{manifest.generation}"
                    made = Made(SsTable(manifest.generation, path), manifest.replay_after, high)
                    begun = Flush("write", manifest, made)
                    yield f"begins to flush rows up to {high}", begun, manifest, disk, (budget[0] - 1, budget[1])
            return
        assert flush.made is not None
        assert flush.began is not None
        sstable = flush.made.sstable
        if flush.step == "write":
            more = disk._replace(sstables=tuple(sorted((*disk.sstables, flush.made), key=lambda one: one.sstable.path)))
            yield f"writes {sstable.path}", flush._replace(step="look"), manifest, more, budget
        elif flush.step == "look":
            if manifest.epoch == epoch:
                yield (
                    f"reads manifest {manifest.version}",
                    flush._replace(step="commit", upon=manifest),
                    manifest,
                    disk,
                    budget,
                )
        elif flush.step == "commit":
            assert flush.upon is not None
            if flush.upon.version != manifest.version:
                yield "finds the version taken", flush._replace(step="look", upon=None), manifest, disk, budget
            elif (named := self._named(ours, flush.made, flush.began, flush.upon)) is not None:
                yield f"commits {sstable.path}", Flush(), named, disk, budget

    def _named(self, ours: bool, made: Made, began: Manifest, upon: Manifest) -> Manifest | None:
        """The manifest that commits a flush. Native checks the epoch alone, and has done so."""
        if ours:
            found = self.rules.covered(upon, made.sstable, started_from=began.replay_after, last_position=made.high)
            return None if found is None else replace(found, version=upon.version + 1)
        return replace(
            upon,
            version=upon.version + 1,
            replay_after=made.high,
            generation=made.sstable.generation + 1,
            sstables=(*upon.sstables, made.sstable),
        )

    # -- the collection, the pin ----------------------------------------------------------

    def _collect(self, number: int, gc: Collection, manifest: Manifest, disk: Disk, pin: Pin) -> Iterator[Move]:
        steps = ("list", *self.rules.collection_order, "delete", "end")
        after = steps[steps.index(gc.step) + 1] if gc.step != "end" else "end"
        left = disk
        if gc.step == "list":
            done = f"lists {len(disk.sstables)} SSTables"
            gc = Collection(after, tuple(made.sstable.path for made in disk.sstables))
        elif gc.step == "manifests":
            done, gc = f"reads manifest {manifest.version}", gc._replace(step=after, seen=manifest)
        elif gc.step == "pins":
            held = pin.manifest if pin.step in ("check", "taken") else None
            done, gc = "reads the pin" if held else "finds no pin", gc._replace(step=after, held=held)
        elif gc.step == "delete" and gc.todo:
            first, *rest = gc.todo
            done, gc = f"deletes {first}", gc._replace(todo=tuple(rest), step="delete" if rest else "end")
            left = disk._replace(
                sstables=tuple(one for one in disk.sstables if one.sstable.path != first),
                wal=tuple(one for one in disk.wal if one != first),
            )
        else:
            return
        if gc.step == "delete" and not gc.todo:
            gc = gc._replace(todo=self._garbage(gc, disk))
            gc = gc if gc.todo else gc._replace(step="end")
        yield Move((f"collection {number}", done), (gc, manifest, left, pin))

    def _garbage(self, gc: Collection, disk: Disk) -> tuple[str | int, ...]:
        assert gc.seen is not None
        pins = [] if gc.held is None else [PinnedShard(gc.held, self.bounds.rows + 1)]
        sstables = self.rules.collectable_sstables(gc.listed, [gc.seen], pins)
        # The tip is never garbage: a barrier stands above the rows.
        return (*sstables, *self.rules.collectable_wal([*disk.wal, self.bounds.rows + 1], [gc.seen], pins))

    def _pin(self, pin: Pin, manifest: Manifest) -> Iterator[Move]:
        if pin.step == "read":
            yield Move(("a checkpoint reads manifest", manifest.version), (Pin("put", manifest), manifest))
        elif pin.step == "put":
            yield Move(("the checkpoint is put",), (pin._replace(step="check"), manifest))
        elif pin.step == "check":
            assert pin.manifest is not None
            holds = self.rules.pin_holds(pin.manifest, manifest)
            yield Move(
                ("the checkpoint is", "taken" if holds else "dropped"),
                (pin._replace(step="taken") if holds else Pin("none"), manifest),
            )

    # -- what must hold ----------------------------------------------------------------------

    def _fault(self, manifest: Manifest, disk: Disk, pin: Pin) -> str | None:
        for named in manifest.sstables:
            if named.generation > disk.mark and not disk.there(named.path):
                return f"invariant 5: the manifest names {named.path}, which is deleted"
        for row in range(1, self.bounds.rows + 1):
            shown = any(
                made.sstable in manifest.sstables
                and made.sstable.generation > disk.mark
                and made.low < row <= made.high
                for made in disk.sstables
            )
            if not (row <= disk.base or shown or (row > manifest.replay_after and row in disk.wal)):
                return f"invariant 1: row {row} is nowhere that a reader looks"
        if pin.step == "taken" and pin.manifest is not None:
            if lost := [one.path for one in pin.manifest.sstables if not disk.there(one.path)]:
                return f"invariant 5: the checkpoint was reported as taken, and its SSTable {lost[0]} is deleted"
            if set(range(pin.manifest.replay_after + 1, self.bounds.rows + 1)) - set(disk.wal):
                return "invariant 5: the checkpoint was reported as taken, and its WAL is deleted"
        return None
