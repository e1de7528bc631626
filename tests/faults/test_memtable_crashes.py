"""A crash after every store operation of MemTable mode, and around every step of writing an SSTable."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headgate.connectors.lance import datasets
from headgate.connectors.lance.base import files as base_files
from headgate.errors import HeadgateError, InvalidInput, Poisoned
from headgate.shards.home.home import home_at
from headgate.shards.wal.pending import Pending, PendingPut, landed
from headgate.shards.writer import ShardWriter
from tests.support.datasets import (
    KEYED,
    MEMTABLE,
    NO_RETRY,
    PLAIN,
    LanceFaultyStore,
    batch,
    faulty,
    home_over,
    keys,
    make_table,
    native_pairs,
    native_writer,
    pairs,
    seen,
)
from tests.support.stores import Crash, Fault

SHARD = uuid.UUID(int=23)
CONFIG = replace(MEMTABLE, retry=NO_RETRY)


class Life:
    """What one process did: the rows it was promised, and those it may have left."""

    def __init__(self, store: LanceFaultyStore, uri: str, schema: pa.Schema) -> None:
        self.store, self.uri, self.schema = store, uri, schema
        self.acked: list[int] = []
        self.attempted: list[int] = []
        self.writer: ShardWriter | None = None

    def run(self, start: int) -> None:
        """Open, put, flush, put, flush, close, until it is over or the process dies."""
        with contextlib.suppress(Crash, HeadgateError):
            writer = self.writer = ShardWriter.open(home_over(self.store, self.uri), SHARD, CONFIG)
            for number in range(start, start + 3):
                self.attempted.append(number)
                writer.put(batch([(number, "n")], self.schema))
                self.acked.append(number)
                if number != start:
                    writer.flush_memtable()
            writer.close()


def _check(uri: str, *lives: Life) -> None:
    pending = [named for life in lives if (named := _named(life)) is not None]
    counts = Counter(i for i, _ in seen(uri, SHARD))
    assert [i for life in lives for i in life.acked if counts[i] == 0] == [], "acknowledged rows are lost"
    assert [i for i, count in counts.items() if count > 1] == [], "rows are there twice"
    assert set(counts) <= {i for life in lives for i in life.attempted}, "rows that nobody put"
    for named in pending:
        assert not any(counts[i] for put in named.failed for i in _ids(put)), "named not durable, and visible"
        for entry in named.unknown:
            there = {bool(counts[i]) for put in entry.puts for i in _ids(put)}
            assert there == {landed(home_at(uri), entry.entry_id)}, "whether it landed was told wrongly"


def _named(life: Life) -> Pending | None:
    with contextlib.suppress(InvalidInput):  # it was left while it worked
        return life.writer.take_pending() if life.writer is not None else None
    return None


def _ids(put: PendingPut) -> list[int]:
    return [i for part in put.batches for i in part.column("id").to_pylist()]


def _operations(tmp_path: Path, schema: pa.Schema) -> int:
    uri = make_table(tmp_path, schema)
    store = faulty(uri)
    life = Life(store, uri, schema)
    life.run(0)
    assert life.acked == [0, 1, 2]
    return len(store.log)


def test_a_crash_after_every_store_operation_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Without a key, so that nothing hides a doubled row. A second life dies as well, then a third one reads."""
    last = _operations(tmp_path, PLAIN)
    assert last > 20
    for number in range(1, last + 1):
        uri = make_table(tmp_path, PLAIN)
        first = Life(faulty(uri, crash_after=number), uri, PLAIN)
        first.run(0)
        assert first.store.crashed, number
        second = Life(faulty(uri, crash_after=(number * 7) % last + 1), uri, PLAIN)
        second.run(10)
        _check(uri, first, second)
        shutil.rmtree(uri)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LOST_EXISTS, Fault.FAIL])
def test_a_fault_at_every_put_loses_and_doubles_nothing(tmp_path: Path, fault: Fault) -> None:
    """Without retries: every fault ends the writer, or is seen to be none."""
    uri = make_table(tmp_path, PLAIN)
    store = faulty(uri)
    Life(store, uri, PLAIN).run(0)
    puts = [operation.number for operation in store.log if operation.verb == "put_if_absent"]
    assert len(puts) > 5
    for number in puts:
        uri = make_table(tmp_path, PLAIN)
        life = Life(faulty(uri), uri, PLAIN)
        life.store.plan = lambda operation, number=number: fault if operation.number == number else None
        life.run(0)
        assert life.store.injected == 1
        _check(uri, life)


def test_native_opens_whatever_a_crash_left(tmp_path: Path) -> None:
    last = _operations(tmp_path, KEYED)
    for number in range(1, last + 1, 3):
        uri = make_table(tmp_path, KEYED)
        life = Life(faulty(uri, crash_after=number), uri, KEYED)
        life.run(0)
        with native_writer(uri, SHARD) as native:
            found = {i for i, _ in native_pairs(native)}
        assert set(life.acked) <= found <= set(life.attempted), number


STEPS = ("before", "dataset", "index", "sidecar", "synced")


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_every_step_of_an_sstable_leaves_a_folder_that_nothing_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    uri = make_table(tmp_path, text=True)
    writer = ShardWriter.open(uri, SHARD, CONFIG)
    writer.put(batch([(1, "a"), (2, "b")]))
    writer.delete(keys(2))
    _die_at(monkeypatch, step)
    with pytest.raises(Poisoned) as raised:
        writer.flush_memtable()
    assert isinstance(raised.value.__cause__, Crash)
    monkeypatch.undo()
    manifest = writer.shard.manifests.latest()
    assert manifest is not None
    assert (manifest.sstables, manifest.replay_after, manifest.generation) == ((), 0, 1)
    left = list((Path(uri) / "_mem_wal" / str(SHARD)).glob("*_gen_1"))
    assert len(left) == (0 if step == "before" else 1)
    with ShardWriter.open(uri, SHARD, CONFIG) as again:
        assert pairs(again.scan()) == [(1, "a")]
        again.flush_memtable()
        assert pairs(again.scan()) == [(1, "a")]
    with native_writer(uri, SHARD) as native:
        assert native_pairs(native) == [(1, "a")]


def test_an_sstable_that_fails_once_is_written_again_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make_table(tmp_path)
    written: list[str] = []
    real = datasets._written

    def failing(place: str, *rest: Any) -> Any:
        written.append(place)
        dataset = real(place, *rest)
        if len(written) < 3:
            raise OSError("a passing fault")
        return dataset

    monkeypatch.setattr(datasets, "_written", failing)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))
        writer.flush_memtable()
        manifest = writer.shard.manifests.latest()
        assert manifest is not None
        assert len(set(written)) == 3
        assert written[-1].endswith(manifest.sstables[0].path)
        assert pairs(writer.scan()) == [(1, "a")]


def _die_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Before anything, or right after that step."""

    def after(real: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*args: Any, **kwargs: Any) -> Any:
            real(*args, **kwargs)
            raise Crash(step)

        return dying

    def dead(*args: Any, **kwargs: Any) -> Any:
        raise Crash(step)

    if step == "before":
        monkeypatch.setattr(datasets, "_written", dead)
    elif step == "dataset":
        monkeypatch.setattr(datasets, "_written", after(datasets._written))
    elif step == "index":
        monkeypatch.setattr(lance.LanceDataset, "create_scalar_index", after(lance.LanceDataset.create_scalar_index))
    elif step == "sidecar":
        monkeypatch.setattr(lance.lance, "_write_pk_sidecar", after(lance.lance._write_pk_sidecar))  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(datasets, "sync_tree", after(base_files.sync_tree))
