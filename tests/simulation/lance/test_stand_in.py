"""The stand-in against pylance: the same calls, pair by pair, with the same outcome and the same rows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headgate.connectors.lance.base import append, tidy
from headgate.connectors.lance.base.clone import ensure_clone
from headgate.connectors.lance.base.marks import compacted_marks
from headgate.connectors.lance.base.merge import delete_keys, merge_rows
from headgate.connectors.lance.base.tags import held_versions, hold_version, release_version
from headgate.connectors.lance.datasets import field_ids, open_dataset
from headgate.connectors.lance.fields import add_numbered
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.local import LocalStore
from headgate.errors import HeadgateError
from tests.simulation.lance.dataset import STORES
from tests.simulation.patches import simulated
from tests.simulation.scheduler import Scheduler
from tests.simulation.store import Objects, SimStore

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("v", pa.int64())])
SHARD = UUID(int=9)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "v": list(ids)}, schema=SCHEMA)


def config(key: str) -> Callable[[Any, ObjectStore], object]:
    return lambda dataset, store: dataset.update_config({key: uuid.uuid4().hex})


def merged(dataset: Any, store: ObjectStore) -> None:
    """As an append of SSTables commits."""
    import lance

    batches = rows(50).to_batches()
    made = [lance.FragmentMetadata.from_json(one) for one in append.write_fragments(dataset, store, batches)]
    there = [one.metadata for one in dataset.get_fragments()]
    operation = lance.LanceOperation.Merge([*there, *(replace(one, id=99) for one in made)], dataset.lance_schema)
    change = lance.Transaction(read_version=dataset.version, operation=operation, uuid=str(uuid.uuid4()))
    lance.LanceDataset.commit(dataset, change, max_retries=0)


def upserted(generation: int, *ids: int) -> Callable[[Any, ObjectStore], object]:
    return lambda dataset, store: merge_rows(dataset, ["id"], rows(*ids), {SHARD: generation})


def deleted(*ids: int) -> Callable[[Any, ObjectStore], object]:
    return lambda dataset, store: delete_keys(dataset, ["id"], rows(*ids))


def tidied(dataset: Any, store: ObjectStore) -> None:
    from lance.optimize import Compaction

    options: Any = {"target_rows_per_fragment": 1000, "excluded_fragment_ids": []}
    Compaction.commit(dataset, [task.execute(dataset) for task in Compaction.plan(dataset, options).tasks])


CHANGES: Mapping[str, Callable[[Any, ObjectStore], object]] = {
    "config a": config("a"),
    "config b": config("b"),
    "append": merged,
    "upsert 1": upserted(1, 1, 60),
    "upsert 2": upserted(2, 2, 61),
    "delete 1": deleted(1),
    "delete 3": deleted(3),
    "add c": lambda dataset, store: add_numbered(dataset, pa.field("c", pa.int64()), 10),
    "drop v": lambda dataset, store: dataset.drop_columns(["v"]),
    "rename v": lambda dataset, store: dataset.alter_columns({"path": "v", "name": "w"}),
    "tidy": tidied,
}


def made(store: ObjectStore) -> None:
    """Two fragments with the rows 1, 2 and 3, and MemWAL."""
    import lance

    uri = store.locate()[0]
    lance.write_dataset(SCHEMA.empty_table(), uri, mode="create")
    merge_rows(open_dataset(store), ["id"], rows(1, 2), {})
    merge_rows(open_dataset(store), ["id"], rows(3), {})
    open_dataset(store).initialize_mem_wal(maintained_indexes=[], unsharded=True)


@pytest.fixture(params=["pylance", "stand-in"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], ObjectStore]]:
    """Makes stores, each of which holds such a table."""
    if request.param == "pylance":
        yield from _stores(lambda number: LocalStore(str(tmp_path / str(number))))
        return

    def simulated_store(number: int) -> ObjectStore:
        scheduler = Scheduler(number, [])
        found = SimStore(Objects(scheduler, number), scheduler, f"memory://tables/{number}")
        STORES[found.uri] = found
        return found

    with simulated():
        yield from _stores(simulated_store)
    STORES.clear()


def _stores(new: Callable[[int], ObjectStore]) -> Iterator[Callable[[], ObjectStore]]:
    count = SimpleNamespace(of=0)

    def make() -> ObjectStore:
        count.of += 1
        store = new(count.of)
        made(store)
        return store

    yield make


def outcome(store: ObjectStore, first: str, second: str) -> bool:
    """Whether a change lands that was made from the version before another one."""
    one, two = open_dataset(store), open_dataset(store)
    CHANGES[first](one, store)
    try:
        CHANGES[second](two, store)
    except (HeadgateError, OSError, ValueError, RuntimeError):
        return False
    return True


REFUSED = {
    "config a": {"config a"},
    "config b": {"config b"},
    "append": CHANGES.keys() - {"config a", "config b"},
    "upsert 1": {"append", "upsert 1", "delete 1", "add c", "tidy"},
    "upsert 2": {"append", "upsert 1", "upsert 2", "add c", "tidy"},
    "delete 1": {"append", "upsert 1", "upsert 2", "delete 1", "add c", "tidy"},
    "delete 3": {"append", "upsert 1", "upsert 2", "delete 3", "add c", "tidy"},
    "add c": CHANGES.keys() - {"config a", "config b", "tidy"},
    "drop v": {"append", "add c", "drop v", "rename v"},
    "rename v": {"append", "add c", "drop v", "rename v"},
    "tidy": {"append", "upsert 1", "upsert 2", "delete 1", "delete 3", "tidy"},
}
"""Per change that has landed, those that are refused."""


@pytest.mark.parametrize("first", CHANGES)
def test_a_change_is_refused_beside_the_same_others(store: Callable[[], ObjectStore], first: str) -> None:
    found = {second for second in CHANGES if not outcome(store(), first, second)}
    assert found == REFUSED[first]


def test_rows_marks_and_columns_come_out_the_same(store: Callable[[], ObjectStore]) -> None:
    table = store()
    merged_rows = merge_rows(open_dataset(table), ["id"], rows(2, 4), {SHARD: 3})
    assert (merged_rows.inserted, merged_rows.updated) == (1, 1)
    assert delete_keys(open_dataset(table), ["id"], rows(1, 77)) == 1
    before = open_dataset(table)
    add_numbered(before, pa.field("c", pa.int64()), 10)
    open_dataset(table).alter_columns({"path": "v", "name": "w"})
    dataset = open_dataset(table)
    assert (dataset.schema.names, field_ids(dataset)) == (["id", "w", "c"], [0, 1, 11])
    assert dict(compacted_marks(table, dataset)) == {SHARD: 3}
    found = dataset.scanner(columns=["id", "w", "c"]).to_table().sort_by("id")
    assert found.to_pydict() == {"id": [2, 3, 4], "w": [2, 3, 4], "c": [None] * 3}
    assert before.scanner(columns=["id", "v"]).to_table().num_rows == 3, "a version never changes"
    tidied(open_dataset(table), table)
    assert sum(one.physical_rows for one in open_dataset(table).get_fragments()) == 3


def test_an_append_lands_once_and_a_version_says_so(store: Callable[[], ObjectStore]) -> None:
    table = store()
    files = append.write_fragments(open_dataset(table), table, rows(8, 9).to_batches())
    own = append.intend(table, {SHARD: 0}, {SHARD: 1}, files)
    for _ in range(2):
        append.append(table, own, {SHARD: 1}, files)
    assert compacted_marks(table, open_dataset(table))[SHARD] == 1
    append.finish(table, {SHARD: 1})
    (progress,) = append.progress_of(open_dataset(table)).values()
    assert (progress.done, progress.tries) == (1, ())
    assert open_dataset(table).count_rows() == 5


def test_a_tag_holds_its_version_and_a_clean_up_takes_the_others(store: Callable[[], ObjectStore]) -> None:
    table = store()
    newest = open_dataset(table).version
    hold_version(table, "kept", newest - 1)
    merge_rows(open_dataset(table), ["id"], rows(5), {})
    tidy.remove_versions(table, range(1, newest + 1))
    assert {one["version"] for one in open_dataset(table).versions()} == {newest - 1, newest + 1}
    assert dict(held_versions(table)) == {"kept": newest - 1}
    assert open_dataset(table, version=newest - 1).count_rows() == 3
    release_version(table, "kept")
    assert not held_versions(table)
    with pytest.raises(HeadgateError):
        open_dataset(table, version=newest)


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_a_clone_has_rows_configuration_and_number_of_its_version(store: Callable[[], ObjectStore], deep: bool) -> None:
    table, target = store(), store()
    for key in [*target.list_keys("")]:
        target.delete(key)
    open_dataset(table).update_config({"mine": json.dumps("x")})
    version = open_dataset(table).version
    merge_rows(open_dataset(table), ["id"], rows(6), {})
    ensure_clone(table, target, version, deep=deep)
    clone = open_dataset(target)
    assert (clone.version, clone.config()["mine"]) == (version, '"x"')
    assert sorted(clone.scanner(columns=["id"]).to_table()["id"].to_pylist()) == [1, 2, 3]
