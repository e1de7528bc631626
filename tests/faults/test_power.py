"""A power cut at every step of every protocol: the table opens, what was acknowledged is there, and all can go on.

In `make test` one cut of each, after it returned; `make test-deep` cuts before each single sync, and reads the disk in
every way of `power.READINGS` and in one that a seed chooses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headgate.checkpoints.offline.checkpoint import release
from headgate.checkpoints.spark.compare import look_at_spark, standing
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import rebuild
from headgate.checkpoints.spark.rewind import rewind, stream_head
from headgate.connectors.lance.base.damage import settle_base
from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.faults.power import READINGS, Cut, Reading, Recorder
from tests.support.directories import equal_batches, spark_directory
from tests.support.histories import DIRECT, STREAM, batches, copied, flush, make, open_stream, rows
from tests.support.life import SCHEMA, TOPIC, expected_rows, ranges_of

UNPINNED = "checkpoint-unpinned"
MENDED = {"base-version-unreadable", "base-version-torn", "base-tag-unreadable", "manifest-gap", UNPINNED}
"""What fsck may find after a cut: `recover --apply` and the next open of a writer mend it. A manifest gap is a warning,
where deletes of a collection came back in another order than they were made; the next collection mends it. A checkpoint
without its tag is one that was being taken: who took it was told nothing, and it is dropped.
"""

NEXT = 9
"""The stream's next batch."""

CHANCES = 8
"""One cut in so many is read by chance as well."""

AGAIN = 4
"""After one in so many cuts the protocol runs once more."""

NATIVE = 2 * 10**9
"""A row of the base, which native Lance wrote."""


@dataclass
class World:
    """A disk with a table on it, and what is promised of its rows."""

    root: Path
    acked: set[int] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    """Rows that somebody deleted."""
    pinned: set[str] = field(default_factory=set)
    """Checkpoints that were reported as taken."""

    @property
    def table(self) -> Table:
        return open_table(str(self.root / "t"))

    def put(self, table: Table, *ids: int) -> None:
        with table.writer(DIRECT) as writer:
            for one in ids:
                self.tried.add(one)
                writer.put(rows(one))
                self.acked.add(one)


Run = Callable[[World], object]


def creating(world: World) -> None:
    """A table of its own, and a row in it."""
    try:
        table = create_table(str(world.root / "t"), SCHEMA, primary_key="id", full_text="note")
    except InvalidInput:
        table = world.table  # it was made before the cut
    with table.writer("single") as writer:
        world.tried.add(1)
        writer.put(rows(1))
        world.acked.add(1)


def putting(world: World) -> None:
    world.put(world.table, 10**9 + 11, 10**9 + 12, 10**9 + 13)


def committing(world: World) -> None:
    ids = set(expected_rows(ranges_of(NEXT)))
    world.tried |= ids
    batches(open_stream(world.table), [NEXT])
    world.acked |= ids


def flushing(world: World) -> None:
    flush(open_stream(world.table))


def checkpointing(world: World) -> None:
    table = world.table
    world.pinned.add(table.checkpoint("all", name=f"power-{len(table.checkpoints())}").name)


def compacting(world: World) -> None:
    flushing(world)
    world.table.compact()


def compacting_over_native(world: World) -> None:
    """As it was found: a native delete, a compaction, a collection."""
    world.given_up.add(NATIVE)
    flushing(world)
    lance.dataset(world.table.uri).delete(f"id = {NATIVE}")
    world.table.compact()
    collecting(world)


def indexing(world: World) -> None:
    world.table.build_index("note", rebuild=True)


def cloning(world: World) -> None:
    world.table.clone(str(world.root / "shallow"), names=[DIRECT])


def cloning_deep(world: World) -> None:
    world.table.clone(str(world.root / "deep"), deep=True, names=[DIRECT])


def changing_columns(world: World) -> None:
    table = world.table
    for name in ("one", "two"):
        if not {name, f"{name}_more"} & set(table.schema.names):
            table = table.add_column(pa.field(name, pa.int64()))
    if "one" in table.schema.names:
        table = table.rename_column("one", "one_more")
    if "two" in table.schema.names:
        table.drop_column("two")


def collecting(world: World) -> None:
    world.table.collect_garbage(min_age=timedelta(0), apply=True)


def dropping_and_collecting(world: World) -> None:
    flushing(world)
    table = world.table
    taken = table.checkpoint(name=f"power-{len(table.checkpoints())}")
    table.drop_checkpoint(taken.name)
    collecting(world)


def folding(world: World) -> None:
    open_stream(world.table).fold()


def releasing(world: World) -> None:
    table = world.table
    release(table.home, table.shard_ids(), STREAM)


def rewinding(world: World) -> None:
    rewind(world.table.home, STREAM, {(TOPIC, 0): 7, (TOPIC, 1): 7})


def rebuilding(world: World) -> None:
    path = world.root / "spark"
    if not path.exists():
        path.mkdir()
    checkpoint = SparkCheckpoint(str(path))
    home = world.table.home
    if standing(stream_head(home, STREAM), look_at_spark(checkpoint)).needs_rebuild:
        rebuild(home, STREAM, checkpoint, open_store(str(path)))
    assert look_at_spark(checkpoint).planned == NEXT - 1


PROTOCOLS: dict[str, Run] = {
    "create": creating,
    "put": putting,
    "commit": committing,
    "flush": flushing,
    "checkpoint": checkpointing,
    "compaction": compacting,
    "compaction over native": compacting_over_native,
    "index": indexing,
    "clone": cloning,
    "deep clone": cloning_deep,
    "columns": changing_columns,
    "gc": collecting,
    "dropped pin and gc": dropping_and_collecting,
    "fold": folding,
    "release": releasing,
    "rewind": rewinding,
    "rebuild": rebuilding,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return make(tmp_path_factory.mktemp("power") / "t")


def world_of(name: str, template: Table, root: Path) -> World:
    root.mkdir()
    world = World(root)
    if name != "create":
        copied(template, root / "t")
        world.acked = set(shown(world.table))
        world.tried = set(world.acked)
    if name == "rebuild":
        spark_directory(root / "spark", equal_batches(3), 2)
    return world


def shown(table: Table) -> Counter[int]:
    return Counter(table.scan(columns=["id"]).read_all()["id"].to_pylist())


def recorded(name: str, template: Table, root: Path, *, every: bool) -> tuple[World, list[Cut]]:
    """Run a protocol on a disk of its own, and note cuts: before each sync, and when it is done."""
    world = world_of(name, template, root)
    with Recorder(root, every=every, note=lambda: (set(world.acked), set(world.given_up), set(world.pinned))) as disk:
        PROTOCOLS[name](world)
        disk.cut("done")
    return world, disk.cuts


def check(world: World, table: Table, acked: set[int], given_up: set[int], *, what: str) -> None:
    """Every row that was acknowledged, once; nothing that nobody put."""
    found = shown(table)
    assert not [one for one, count in found.items() if count > 1], f"{what}: rows are there twice"
    assert not acked - given_up - set(found), f"{what}: lost {sorted(acked - given_up - set(found))[:9]}"
    assert not set(found) - world.tried, f"{what}: nobody put {sorted(set(found) - world.tried)[:9]}"


def give_up(table: Table, place: str, pinned: set[str], what: str) -> None:
    """Drop a checkpoint that the cut found between its record and its tag, as its finding says. A clone's own pin is
    taken up by the clone.
    """
    name = place.split("/checkpoints/")[1].rpartition("/")[0]
    assert name not in pinned, f"{what}: checkpoint {name} was reported as taken, and lost its tag"
    if not name.startswith("clone-"):
        table.drop_checkpoint(name)


def after_the_cut(world: World, cut: Cut, reading: Reading, name: str, *, again: bool = True) -> None:
    """The disk as the cut left it: read, checked, mended, and the protocol run again."""
    what = f"{name}, {cut.label}, read as {reading}"
    cut.write(world.root, reading)
    acked, given_up, pinned = cut.note
    if name == "create" and not acked:
        PROTOCOLS[name](world)  # whatever there was of it, the same call makes it
    for place in tables_of(world, cut, name):
        findings = fsck(str(place)).findings
        found = {one.code: one for one in findings}
        assert found.keys() <= MENDED, f"{what}, {place.name}: {list(found.values())}"
        table = open_table(str(place))
        for one in findings:
            if one.code == UNPINNED:
                give_up(table, one.place, pinned, what)
        if "base-version-torn" not in found:
            check(world, table, acked, given_up, what=what)
        settle_base(table.home.store)
        check(world, open_table(str(place)), acked, given_up, what=f"{what}, mended")
    if again:
        PROTOCOLS[name](world)
        for place in tables_of(world, cut, name):
            check(world, open_table(str(place)), acked, given_up, what=f"{what}, again")
            left = fsck(str(place)).findings
            assert not left, f"{what}, again, {place.name}: {left}"


def tables_of(world: World, cut: Cut, name: str) -> Iterator[Path]:
    """The table, and a clone that was promised."""
    yield world.root / "t"
    clone = world.root / {"clone": "shallow", "deep clone": "deep"}.get(name, "none")
    if clone.exists() and cut.label == "done":
        yield clone


@pytest.mark.parametrize("name", PROTOCOLS)
def test_after_a_power_cut_all_that_was_acknowledged_is_there(tmp_path: Path, template: Table, name: str) -> None:
    world, cuts = recorded(name, template, tmp_path / "disk", every=False)
    after_the_cut(world, cuts[-1], "names", name)


@pytest.mark.deep
@pytest.mark.parametrize("name", PROTOCOLS)
def test_after_a_power_cut_before_any_sync_all_that_was_acknowledged_is_there(
    tmp_path: Path, template: Table, name: str, record_property: Callable[[str, object], None]
) -> None:
    world, cuts = recorded(name, template, tmp_path / "disk", every=True)
    seen: set[int] = set()
    for number, cut in enumerate(cuts):
        for reading in (*READINGS, number) if number % CHANCES == 0 else READINGS:
            left = hash((frozenset(cut.left(reading).items()), frozenset(cut.note[0])))
            if left not in seen:
                after_the_cut(world, cut, reading, name, again=len(seen) % AGAIN == 0 or cut is cuts[-1])
            seen.add(left)
    row = {"protocol": name, "cuts": len(cuts), "states of the disk": len(seen)}
    record_property("found", ["Power cuts after which the table was whole", row])
