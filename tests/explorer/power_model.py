"""Power cuts: what is deleted because something else has it, while that may not be on disk (R21).

One shard with rows in its WAL; flushes (ours, synced, or native's, which syncs nothing); compactions, whose base nobody
has synced when they commit; a checkpoint that is dropped; collections. A cut ends every party, and of all that is not
synced it takes back whichever it likes: versions of the base from the newest on, manifests and SSTables of native's,
the drop of a checkpoint. Deletes of files it lets stand, which is the worse case. One step is one operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple
from uuid import UUID

from headgate.checkpoints.snapshots.checkpoint import PinnedShard
from headgate.shards.manifest.model import Manifest, SsTable
from tests.explorer.exploring import Action, Check, Model, Move, Witness
from tests.explorer.rules import Rules

SHARD = UUID(int=21)


@dataclass(frozen=True)
class PowerBounds:
    """How much may happen."""

    name: str
    native: bool = False
    """Whether native flushes."""
    rows: int = 2
    flushes: int = 2
    compactions: int = 2
    collections: int = 2
    cuts: int = 1
    pins: bool = False


class Made(NamedTuple):
    """An SSTable: rows above `low`, up to `high`."""

    sstable: SsTable
    low: int
    high: int
    synced: bool


class Version(NamedTuple):
    """Of the base: rows up to `high`, and the generation that it has taken in."""

    high: int = 0
    mark: int = 0


class Disk(NamedTuple):
    """What there is."""

    manifests: tuple[tuple[Manifest, bool], ...]
    """Rising, and whether each is synced."""
    wal: tuple[int, ...]
    sstables: tuple[Made, ...] = ()
    base: tuple[Version, ...] = (Version(),)
    synced: int = 1
    """So many versions of the base are."""
    marked: int = 1
    """So many are said to be: `synced/<version>`."""
    pin: str = "none"
    """A checkpoint of the beginning: none, held, dropped (which a cut may take back) or gone."""
    lost: frozenset[str] = frozenset()
    """What cuts have taken back."""

    @property
    def latest(self) -> Manifest:
        return self.manifests[-1][0]

    def has(self, path: str) -> bool:
        return any(made.sstable.path == path for made in self.sstables)


class Party(NamedTuple):
    """A flush, a compaction or a collection: where it stands, and what it has found."""

    step: str = "idle"
    made: Made | None = None
    version: int = 0
    """Of the base, that it syncs."""
    listed: tuple[str, ...] = ()
    seen: Manifest | None = None
    held: bool = False
    todo: tuple[str | int, ...] = ()


def power_model(bounds: PowerBounds, rules: Rules) -> Model:
    """The model within these bounds."""
    return _Power(bounds, rules).model()


@dataclass(frozen=True)
class _Power:
    bounds: PowerBounds
    rules: Rules

    def model(self) -> Model:
        bounds = self.bounds
        first = Manifest(version=1, epoch=1, shard_id=SHARD)
        disk = Disk(((first, True),), tuple(range(1, bounds.rows + 1)), pin="held" if bounds.pins else "none")
        collections = tuple(f"collection {number}" for number in range(bounds.collections))
        parties = ("flush", "compaction", *collections)
        start: dict[str, object] = dict.fromkeys(parties, Party())
        start |= {"disk": disk, "budget": (bounds.flushes, bounds.compactions, bounds.cuts)}
        actions = [
            Action(("flush", "disk", "budget"), self._flush),
            Action(("compaction", "disk", "budget"), self._compact),
            Action(("disk",), self._drop_pin),
            Action(("budget", "disk", *parties), self._cut),
            *(Action((name, "disk"), partial(self._collect, name)) for name in collections),
        ]
        return Model(bounds.name, start, actions, [Check(("disk",), self._fault)], list(self._witnesses()))

    def _witnesses(self) -> Iterator[Witness]:
        rows = self.bounds.rows
        yield Witness(
            "a cut takes back a version of the base, after WAL was collected",
            ("disk",),
            lambda disk: "base" in disk.lost and len(disk.wal) < rows,
        )
        yield Witness(
            "an SSTable that the base has is collected",
            ("disk",),
            lambda disk: any(version.mark and len(disk.sstables) < version.mark for version in disk.base),
        )
        if self.bounds.native:
            yield Witness("a cut takes back what native flushed", ("disk",), lambda disk: "sstable" in disk.lost)
        if self.bounds.pins:
            yield Witness("a cut brings a checkpoint back", ("disk",), lambda disk: "drop" in disk.lost)
            held = "what a checkpoint held is collected"
            yield Witness(held, ("disk",), lambda disk: disk.pin == "gone" and len(disk.wal) < rows)

    # -- those who write -------------------------------------------------------------------

    def _flush(self, flush: Party, disk: Disk, budget: tuple[int, int, int]) -> Iterator[Move]:
        manifest, ours = disk.latest, not self.bounds.native
        if flush.step == "idle" and budget[0]:
            for high in range(manifest.replay_after + 1, self.bounds.rows + 1):
                if set(range(manifest.replay_after + 1, high + 1)) <= set(disk.wal):
                    path = f"{budget[0]}x" + ("_epoch_1" if ours else "") + f"_gen_{manifest.generation}"
                    made = Made(SsTable(manifest.generation, path), manifest.replay_after, high, ours)
                    more = disk._replace(sstables=(*disk.sstables, made))
                    yield Move(
                        ("a flush writes", path, "with rows up to", high),
                        (Party("commit", made), more, (budget[0] - 1, *budget[1:])),
                    )
        elif flush.step == "commit":
            assert flush.made is not None
            made = flush.made
            named = self.rules.covered(manifest, made.sstable, started_from=made.low, last_position=made.high)
            if named is not None:
                yield Move(("it commits", made.sstable.path), (Party(), self._put(disk, named, ours), budget))

    def _compact(self, compaction: Party, disk: Disk, budget: tuple[int, int, int]) -> Iterator[Move]:
        """Ours, under a claim: a synced manifest stands above native's. What the base has, another one may drop."""
        manifest, base = disk.latest, disk.base[-1]
        if not disk.manifests[-1][1]:
            if compaction.step == "idle":
                yield Move(("a compaction claims the shard",), (compaction, self._put(disk, manifest, True), budget))
            return
        oldest = manifest.sstables[0] if manifest.sstables else None
        if compaction.step == "idle" and oldest is not None:
            made = next((one for one in disk.sstables if one.sstable == oldest), None)
            if oldest.generation <= base.mark:
                step = "sync" if self.rules.drops_synced else "drop"
                yield Move(("a compaction finds", oldest.path, "in the base"), (Party(step), disk, budget))
            elif budget[1] and made is not None:
                merged = disk._replace(base=(*disk.base, Version(made.high, oldest.generation)))
                left = (budget[0], budget[1] - 1, budget[2])
                yield Move(("the base takes in", oldest.path), (compaction, merged, left))
        elif compaction.step == "drop":
            left_over = self.rules.uncompacted(manifest.sstables, manifest.generation, base.mark)
            if left_over is not None and left_over != manifest.sstables:
                dropped = self._put(disk, replace(manifest, sstables=left_over), True)
                yield Move(("the compaction drops SSTables up to", base.mark), (Party(), dropped, budget))
        elif compaction.step != "idle":
            for label, then, changed in self._sync_base(compaction, disk, "drop"):
                yield Move(("the compaction", *label), (then, changed, budget))

    def _put(self, disk: Disk, manifest: Manifest, synced: bool) -> Disk:
        return disk._replace(manifests=(*disk.manifests, (replace(manifest, version=disk.latest.version + 1), synced)))

    def _drop_pin(self, disk: Disk) -> Iterator[Move]:
        if disk.pin == "held":
            yield Move(("the checkpoint is dropped",), (disk._replace(pin="dropped"),))

    # -- the sync ----------------------------------------------------------------------------

    def _sync_base(self, party: Party, disk: Disk, after: str) -> Iterator[tuple[tuple[object, ...], Party, Disk]]:
        """The newest version, unless its mark is there; then its mark."""
        version = len(disk.base)
        first, last = ("sync", "mark") if self.rules.mark_last else ("mark", "sync")
        if party.step == "sync" and disk.marked >= version:
            yield ("finds the base marked",), party._replace(step=after), disk
            return
        at = party.version or version
        then = party._replace(step="mark" if party.step == "sync" else after, version=at)
        if party.step == "mark":
            then = then._replace(version=0)
        if (first if party.step == "sync" else last) == "sync":
            yield ("syncs version", at), then, disk._replace(synced=max(disk.synced, min(at, version)))
        else:
            yield ("marks version", at), then, disk._replace(marked=max(disk.marked, at))

    # -- the collection -------------------------------------------------------------------------

    def _collect(self, name: str, gc: Party, disk: Disk) -> Iterator[Move]:
        order = self.rules.collection_order
        if gc.step == "idle":
            listed = tuple(made.sstable.path for made in disk.sstables)
            yield Move((name, f"lists {len(listed)} SSTables"), (Party(order[0], listed=listed), disk))
        elif gc.step == "manifests":
            then = gc._replace(step="pins", seen=disk.latest)
            yield Move((name, "reads manifest", disk.latest.version), (then, disk))
        elif gc.step == "pins":
            todo = self._garbage(gc, disk, disk.pin == "held")
            step = self._next(None) if todo else "end"
            yield Move((name, "reads the pins"), (gc._replace(step=step, listed=(), todo=todo), disk))
        elif gc.step in ("sync", "mark"):
            for label, then, changed in self._sync_base(gc, disk, self._next("base")):
                yield Move((name, *label), (then, changed))
        elif gc.step == "shards":
            named = {one.path for one in disk.latest.sstables}
            synced = disk._replace(
                manifests=(*disk.manifests[:-1], (disk.latest, True)),
                sstables=tuple(
                    made._replace(synced=made.synced or made.sstable.path in named) for made in disk.sstables
                ),
            )
            then = gc._replace(step=self._next("shards"))
            yield Move((name, "syncs manifest", disk.latest.version, "and its SSTables"), (then, synced))
        elif gc.step == "pins' folder":
            gone = disk._replace(pin="gone" if disk.pin == "dropped" else disk.pin)
            yield Move((name, "syncs the folder of pins"), (gc._replace(step=self._next("pins")), gone))
        elif gc.step == "delete":
            first, *rest = gc.todo
            left = disk._replace(
                sstables=tuple(one for one in disk.sstables if one.sstable.path != first),
                wal=tuple(one for one in disk.wal if one != first),
            )
            then = gc._replace(step="delete" if rest else "end", todo=tuple(rest))
            yield Move((name, "deletes", first), (then, left))

    def _next(self, done: str | None) -> str:
        """What a collection does after it has synced this."""
        steps = {"base": "sync", "shards": "shards", "pins": "pins' folder"}
        left = list(steps)[0 if done is None else list(steps).index(done) + 1 :]
        return next((steps[one] for one in left if one in self.rules.synced_first), "delete")

    def _garbage(self, gc: Party, disk: Disk, held: bool) -> tuple[str | int, ...]:
        assert gc.seen is not None
        first = disk.manifests[0][0]
        pins = [PinnedShard(first, self.bounds.rows + 1)] if held else []
        mark = disk.base[-1].mark
        if self.rules.minds_missing and any(
            one.generation > mark and not disk.has(one.path) for one in gc.seen.sstables
        ):
            return ()
        sstables = self.rules.collectable_sstables(gc.listed, [gc.seen], pins)
        # The tip is never garbage: a barrier stands above the rows.
        return (*sstables, *self.rules.collectable_wal([*disk.wal, self.bounds.rows + 1], [gc.seen], pins))

    # -- the cut ---------------------------------------------------------------------------------

    def _cut(self, budget: tuple[int, int, int], disk: Disk, *parties: Party) -> Iterator[Move]:
        """Who had begun to collect does not begin again; the budget of the others is what bounds them."""
        if not budget[2]:
            return
        ended = tuple(
            Party("end") if number >= 2 and party.step != "idle" else Party() for number, party in enumerate(parties)
        )
        manifests = [(True,) if synced else (True, False) for _, synced in disk.manifests]
        sstables = [(True,) if made.synced else (True, False) for made in disk.sstables]
        versions = range(min(disk.synced, len(disk.base)), len(disk.base) + 1)
        pins = ("held", "gone") if disk.pin == "dropped" else (disk.pin,)
        for version, pin, kept, there in product(versions, pins, product(*manifests), product(*sstables)):
            lost = {"base"} if version < len(disk.base) else set()
            lost |= {"drop"} if disk.pin == "dropped" and pin == "held" else set()
            lost |= {"sstable"} if not all(there) else set()
            left = Disk(
                tuple((one, True) for (one, _), stays in zip(disk.manifests, kept, strict=True) if stays),
                disk.wal,
                tuple(made._replace(synced=True) for made, stays in zip(disk.sstables, there, strict=True) if stays),
                disk.base[:version],
                version,
                disk.marked,
                pin,
                disk.lost | lost,
            )
            what = ", ".join(sorted(lost)) or "nothing"
            yield Move(("the power fails: lost is", what), ((*budget[:2], budget[2] - 1), left, *ended))

    # -- what must hold -----------------------------------------------------------------------------

    def _fault(self, disk: Disk) -> str | None:
        """Native's own order may lose an SSTable that its manifest names; then the WAL must still have the rows."""
        manifest, base = disk.latest, disk.base[-1]
        for row in range(1, self.bounds.rows + 1):
            named = (made for made in disk.sstables if made.sstable in manifest.sstables)
            shown = any(made.sstable.generation > base.mark and made.low < row <= made.high for made in named)
            in_wal = row in disk.wal and (self.bounds.native or row > manifest.replay_after)
            if not (row <= base.high or shown or in_wal):
                return f"invariant 2: row {row} is nowhere any more"
        if disk.pin == "held" and len(disk.wal) < self.bounds.rows:
            return "invariant 5: the checkpoint is there, and what it held is deleted"
        return None
