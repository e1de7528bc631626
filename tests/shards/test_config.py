"""WriterConfig: what each option does in WAL-only mode, and that the docstring says so."""

from __future__ import annotations

import gc
import inspect
import re
import uuid
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput
from headgate.shards.config import MAX_SECONDS, OPTIONS, Use, WriterConfig, option_table
from headgate.shards.wal.encoder import encode_rows
from headgate.shards.writer import ShardWriter
from tests.shards.wal.test_flusher import until
from tests.support.closing import ASYNC, ROWS, WAL_ONLY, Background, entry_at, home_of, open_writer, rows, wal_positions
from tests.support.datasets import batch, faulty, home_over, make_table
from tests.support.stores import FaultyStore

EXTREMES: dict[str, tuple[Any, Any]] = {
    "max_memtable_size": (1, 1 << 60),
    "max_memtable_rows": (1, 1 << 60),
    "max_memtable_batches": (1, 1 << 60),
}
"""Every MemTable knob that WAL-only mode ignores, at both ends."""

WORKS_IN_WAL_ONLY = {
    "enable_memtable",
    "durable_write",
    "max_wal_buffer_size",
    "max_wal_flush_interval",
    "max_unflushed_memtable_bytes",
    "backpressure_log_interval",
    "retry",
    "compression",
    "maintained_indexes",
}


def lines_of_the_docstring() -> dict[str, str]:
    """What the docstring says of each option."""
    doc = inspect.cleandoc(WriterConfig.__doc__ or "")
    parts = re.split(r"^(\w+):", doc, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def life(config: WriterConfig) -> dict[str, Any]:
    """All that can be seen from outside of a writer's life under a configuration."""
    store = FaultyStore(open_store(f"memory://{uuid.uuid4().hex}"))
    shard_id = uuid.uuid4()
    writer = open_writer(store, shard_id, config)
    handles = [writer.put(rows(*range(10 * number, 10 * number + 10))) for number in range(20)]
    writer.flush()
    writer.close()
    shard = home_of(store).shard(shard_id)
    manifest = shard.manifests.latest()
    assert manifest is not None
    entries = [entry_at(shard, position) for position in wal_positions(shard)]
    return {
        "positions": [handle.positions for handle in handles],
        "entries": [[batch.to_pydict() for batch in entry.batches] for entry in entries],
        "sizes": [entry.nbytes for entry in entries],
        "operations": store.operations(),
        "folders": sorted(store.list_folders(f"_mem_wal/{shard_id}/")),
        "manifest": (manifest.version, manifest.last_seen, manifest.replay_after, manifest.generation),
        "sstables": manifest.sstables,
        "stats": replace(writer.stats().pipeline, peak_pending_bytes=0, waits=0),
    }


def test_every_option_is_either_for_both_modes_or_ignored_in_wal_only() -> None:
    assert [option.name for option in fields(WriterConfig)] == [option.name for option in OPTIONS]
    assert {option.name for option in OPTIONS if option.wal_only is Use.IGNORED} == set(EXTREMES)
    assert {option.name for option in OPTIONS} - set(EXTREMES) == WORKS_IN_WAL_ONLY


class Recording(WriterConfig):
    """Notes which options are asked for."""

    asked: ClassVar[set[str]]

    def __getattribute__(self, name: str) -> Any:
        if name in {option.name for option in OPTIONS}:
            type(self).asked.add(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])
def test_each_mode_reads_the_options_that_the_table_says_and_no_other(tmp_path: Path, memtable: bool) -> None:
    uri, shard_id = make_table(tmp_path, text=True), uuid.uuid4()
    store = faulty(uri)
    Recording.asked = set()
    config = Recording(enable_memtable=memtable, durable_write=False, max_wal_buffer_size=10_000)
    Recording.asked.clear()
    with ShardWriter.open(home_over(store, uri), shard_id, config) as writer:
        stall = store.stall("put_if_absent", "/wal/")
        writer.put(batch([(1, "a word")]))
        stall.wait()
        writer.put(batch([(2, "word " * 4_000)]))
        waiting = Background(lambda: writer.put(batch([(3, "another word")])))
        until(lambda: writer.stats().pipeline.waits == 1)
        stall.release()
        waiting.result()
        writer.flush()
        if memtable:
            assert writer.scan().read_all().num_rows == 3
            writer.flush_memtable()
    expected = {one.name for one in OPTIONS if memtable or one.wal_only is not Use.IGNORED}
    assert Recording.asked == expected


def test_an_entry_takes_what_is_queued_up_to_the_whole_buffer(shard_id: uuid.UUID) -> None:
    """Writing starts at half of it; what was queued by then is in the entry."""
    store = FaultyStore(open_store(f"memory://{uuid.uuid4().hex}"))
    one = encode_rows(ROWS.stored_rows(rows(1))).nbytes
    writer = open_writer(store, shard_id, replace(ASYNC, max_wal_buffer_size=10 * one))
    stall = store.stall("put_if_absent", "/wal/")
    handles = [writer.put(rows(row)) for row in range(5)]
    stall.wait()
    assert writer.stats().pipeline.pending_puts == 5
    handles += [writer.put(rows(row)) for row in range(5, 10)]
    stall.release()
    writer.close()
    assert [handle.positions[0] for handle in handles] == [1] * 5 + [2] * 5


def test_the_docs_have_the_table_of_options() -> None:
    assert option_table() in (Path(__file__).parents[2] / "docs" / "concepts" / "modes.md").read_text()


def test_every_option_has_its_line_in_the_docstring() -> None:
    assert list(lines_of_the_docstring()) == [option.name for option in fields(WriterConfig)]


@pytest.mark.parametrize("knob", list(EXTREMES))
@pytest.mark.parametrize("durable", [True, False])
def test_wal_only_ignores_every_memtable_knob_and_the_docstring_says_so(knob: str, durable: bool) -> None:
    base = replace(WAL_ONLY if durable else ASYNC)
    plain = life(base)
    for value in EXTREMES[knob]:
        assert life(replace(base, **{knob: value})) == plain
    assert "Ignored in WAL-only mode." in lines_of_the_docstring()[knob]


def test_every_memtable_knob_at_once_changes_nothing_either() -> None:
    plain = life(WAL_ONLY)
    for end in (0, 1):
        assert life(replace(WAL_ONLY, **{knob: ends[end] for knob, ends in EXTREMES.items()})) == plain


def test_wal_only_makes_nothing_but_wal_and_manifest() -> None:
    seen = life(WAL_ONLY)
    assert seen["folders"] == ["manifest", "wal"]
    assert seen["sstables"] == ()


def test_wal_only_holds_no_rows_once_they_are_durable(shard_id: uuid.UUID) -> None:
    with open_writer(open_store(f"memory://{uuid.uuid4().hex}"), shard_id) as writer:
        gc.collect()
        before = pa.total_allocated_bytes()
        for number in range(50):
            writer.put(rows(*range(1000 * number, 1000 * number + 1000)))
        gc.collect()
        assert pa.total_allocated_bytes() - before < 1000 * 8


@pytest.mark.parametrize("name", sorted(WORKS_IN_WAL_ONLY))
def test_no_option_that_works_is_called_ignored(name: str) -> None:
    assert "Ignored" not in lines_of_the_docstring()[name]


def test_the_budget_is_documented_as_the_pending_queues_in_wal_only_mode() -> None:
    assert (
        "In WAL-only mode it is the limit of the pending queue"
        in (lines_of_the_docstring()["max_unflushed_memtable_bytes"])
    )


NUMBERS = [option.name for option in fields(WriterConfig) if type(option.default) in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("-inf"), "10", None, True])
def test_a_number_that_cannot_be_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        WriterConfig(**{name: value})


@pytest.mark.parametrize("name", [option.name for option in fields(WriterConfig) if type(option.default) is float])
@pytest.mark.parametrize("value", [float("inf"), 1e12])
def test_a_time_that_no_thread_can_wait_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        WriterConfig(**{name: value})
    longest: dict[str, Any] = {name: MAX_SECONDS}
    assert getattr(WriterConfig(**longest), name) == MAX_SECONDS


@pytest.mark.parametrize("name", ["enable_memtable", "durable_write"])
@pytest.mark.parametrize("value", ["false", 1, None])
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        WriterConfig(**{name: value})


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(InvalidInput, match="gzip"):
        WriterConfig(compression="gzip")  # type: ignore[arg-type]


def test_a_long_interval_works(shard_id: uuid.UUID) -> None:
    config = replace(WAL_ONLY, durable_write=False, max_wal_flush_interval=float(MAX_SECONDS))
    store = open_store(f"memory://{uuid.uuid4().hex}")
    with ShardWriter.open(home_of(store), shard_id, config) as writer:
        handle = writer.put(rows(1))
    assert handle.positions == (1,)
