"""One view over base, SSTables and fresh rows."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import CompactedSsTable

from headgate.connectors.lance.base.marks import compacted_marks
from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput
from headgate.shards.rows.view import ShardDelta, TableView
from headgate.shards.writer import ShardWriter
from headgate.table.create import create_table
from tests.support.datasets import KEY, KEYED, MEMTABLE, PLAIN, batch, keys, make_table, pairs

SHARD = uuid.UUID(int=13)


def _layered(uri: str) -> ShardWriter:
    """Key 1 in base, two SSTables and the MemTable; 2 deleted in an SSTable; 3 deleted in the MemTable."""
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    writer.put(batch([(1, "first"), (4, "first")]))
    writer.flush_memtable()
    writer.put(batch([(1, "second"), (5, "second")]))
    writer.delete(keys(2))
    writer.flush_memtable()
    writer.put(batch([(1, "third")]))
    writer.delete(keys(3, 4))
    return writer


BASE = [(1, "base"), (2, "base"), (3, "base"), (6, "base")]
EXPECTED = [(1, "third"), (5, "second"), (6, "base")]


def test_the_newest_row_of_each_key_wins_and_deletes_hide_all_older_ones(tmp_path: Path) -> None:
    with _layered(make_table(tmp_path, base=BASE)) as writer:
        assert pairs(writer.scan()) == EXPECTED
        assert writer.scan(["note"]).read_all().num_rows == 3
        assert writer.scan(["note"]).schema.names == ["note"]


@pytest.mark.parametrize("note", ["base", "first", "second", "third", "nobody"])
def test_a_filter_never_brings_an_older_version_back(tmp_path: Path, note: str) -> None:
    with _layered(make_table(tmp_path, base=BASE)) as writer:
        expected = [pair for pair in EXPECTED if pair[1] == note]
        assert pairs(writer.scan(filter=f"note = '{note}'")) == expected
        assert writer.scan(["id"], f"note = '{note}'").read_all().column("id").to_pylist() == [i for i, _ in expected]


def test_a_lookup_finds_what_a_scan_shows(tmp_path: Path) -> None:
    with _layered(make_table(tmp_path, base=BASE)) as writer:
        for key in range(8):
            assert pairs(writer.get(keys(key))) == [pair for pair in EXPECTED if pair[0] == key]
        assert pairs(writer.get(keys(*range(8), 1))) == EXPECTED
        assert pairs(writer.get(keys())) == []
        with pytest.raises(InvalidInput):
            writer.get(batch([(1, "x")]))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [-(2**63), -(2**62), -1, 0, 2**62, 2**63 - 1]),
        (pa.uint64(), [0, 7, 2**62, 2**63, 2**64 - 1]),
        (pa.int8(), [-128, 0, 127]),
        (pa.string(), ["", "a", "A", "it's", "''", "ü%_", "back\\slash", "new\nline", '"`', "nul\0", "--"]),
        (pa.large_string(), ["", "a", "it's"]),
        (pa.binary(), [b"", b"\0", b"a\xff", b"'"]),
        (pa.large_binary(), [b"", b"a"]),
        (pa.bool_(), [True, False]),
    ],
    ids=lambda one: str(one) if isinstance(one, pa.DataType) else "",
)
@pytest.mark.parametrize("name", ["id", "a 'b"])
def test_a_lookup_of_one_key_finds_that_key_in_every_layer(
    tmp_path: Path, kind: pa.DataType, values: list[object], name: str
) -> None:
    schema = pa.schema([pa.field(name, kind, False, KEY), pa.field("layer", pa.string())])

    def rows(some: list[object], layer: str) -> pa.Table:
        return pa.table([pa.array(some, kind), pa.array([layer] * len(some), pa.string())], schema=schema)

    uri = str(tmp_path / "t")
    lance.write_dataset(rows(values, "base"), uri).initialize_mem_wal()
    expected = dict.fromkeys(values, "base")
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        for layer, some in (("sstable", values[:2]), ("tail", values[1:2])):
            for value in values:
                found = writer.get(rows([value], "").select([name])).to_pylist()
                assert found == [{name: value, "layer": expected[value]}]
            writer.put(rows(some, layer))
            if layer == "sstable":
                writer.flush_memtable()
            expected.update(dict.fromkeys(some, layer))
        for value in values:
            assert writer.get(rows([value], "").select([name])).to_pylist() == [{name: value, "layer": expected[value]}]
        assert writer.get(rows(values, "").select([name])).num_rows == len(values)


def test_a_lookup_of_no_key_finds_nothing_also_in_sstables_of_other_columns(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), KEYED)
    with table.writer("single", MEMTABLE) as writer:
        writer.put(batch([(1, "before")]))
        writer.flush_memtable()
    wider = table.add_column(pa.field("more", pa.int64()))
    assert wider.get(keys()).num_rows == 0
    assert wider.get(keys(1)).num_rows == 1


def test_a_lookup_of_very_many_keys_is_a_scan(tmp_path: Path) -> None:
    with _layered(make_table(tmp_path, base=BASE)) as writer:
        assert pairs(writer.get(keys(*range(2, 20_000)))) == EXPECTED[1:]


def test_a_table_without_a_key_shows_every_row_and_has_no_lookup(tmp_path: Path) -> None:
    with ShardWriter.open(make_table(tmp_path, PLAIN, base=[(1, "a")]), SHARD, MEMTABLE) as writer:
        for _ in range(2):
            writer.put(batch([(1, "a")], PLAIN))
            writer.flush_memtable()
        writer.put(batch([(1, "a")], PLAIN))
        assert pairs(writer.scan()) == [(1, "a")] * 4
        with pytest.raises(InvalidInput):
            writer.get(keys(1))
        with pytest.raises(InvalidInput):
            writer.delete(keys(1))


def test_a_key_of_several_columns(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.binary(), False, KEY), pa.field("part", pa.string(), False, KEY), pa.field("n", pa.int32())]
    )
    uri = str(tmp_path / "t")
    rows = [{"id": b"a", "part": "x", "n": 0}, {"id": b"a", "part": "y", "n": 0}, {"id": b"b", "part": "x", "n": 0}]
    lance.write_dataset(pa.Table.from_pylist(rows, schema=schema), uri).initialize_mem_wal()

    def some(*triples: tuple[bytes, str, int]) -> pa.RecordBatch:
        found = [{"id": i, "part": p, "n": n} for i, p, n in triples]
        return pa.RecordBatch.from_pylist(found, schema=schema)

    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(some((b"a", "x", 1), (b"b", "y", 1)))
        writer.flush_memtable()
        writer.delete(some((b"a", "y", 0)).select(["id", "part"]))
        found = writer.scan().read_all().to_pylist()
        assert sorted((r["id"], r["part"], r["n"]) for r in found) == [(b"a", "x", 1), (b"b", "x", 0), (b"b", "y", 1)]
        got = writer.get(some((b"a", "x", 0), (b"b", "y", 0), (b"a", "y", 0)).select(["part", "id"])).to_pylist()
        assert sorted((r["id"], r["part"], r["n"]) for r in got) == [(b"a", "x", 1), (b"b", "y", 1)]


def test_unknown_columns_and_bad_filters_are_refused_before_the_first_row(tmp_path: Path) -> None:
    with _layered(make_table(tmp_path, base=BASE)) as writer:
        with pytest.raises(InvalidInput):
            writer.scan(["nope"])
        for bad in ("nope = 1", "note = ", "id = 'x' AND"):
            with pytest.raises(InvalidInput):
                writer.scan(filter=bad)


# -- what the base has taken in ----------------------------------------------------------


def _compact(uri: str, generation: int, rows: pa.RecordBatch) -> None:
    """As a compaction does: merge the rows and set the mark in one commit."""
    merge = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.mark_sstables_as_compacted([CompactedSsTable(str(SHARD), generation)]).execute(rows)


def test_the_mark_on_the_base_is_read_where_pylance_hides_it(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    store = open_store(uri)
    assert compacted_marks(store, lance.dataset(uri)) == {}
    _compact(uri, 3, batch([(1, "a")]))
    _compact(uri, 300, batch([(1, "b")]))
    assert compacted_marks(store, lance.dataset(uri)) == {SHARD: 300}
    assert compacted_marks(store, lance.dataset(uri, version=lance.dataset(uri).version - 1)) == {SHARD: 3}
    plain = lance.write_dataset(batch([(1, "a")]), str(tmp_path / "plain"))
    assert compacted_marks(open_store(plain.uri), plain) == {}


def test_lance_hole_10_a_compacted_sstable_never_shadows_the_base(tmp_path: Path) -> None:
    """The manifest still names it. After a delete and an update on the base its rows must not come back."""
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a"), (2, "b"), (3, "c")]))
        writer.flush_memtable()
        _compact(uri, 1, batch([(1, "a"), (2, "b"), (3, "c")]))
        lance.dataset(uri).delete("id = 1")
        lance.dataset(uri).update({"note": "'changed'"}, where="id = 2")
        assert writer.shard.manifests.latest().sstables  # type: ignore[union-attr]
        assert pairs(writer.scan()) == [(2, "changed"), (3, "c")]
        assert pairs(writer.get(keys(1, 2))) == [(2, "changed")]
        writer.put(batch([(3, "d")]))
        assert pairs(writer.scan()) == [(2, "changed"), (3, "d")]


def test_a_base_that_is_ahead_of_the_shard_asks_for_another_look(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))
        rows = writer.active_memtable()
        delta = ShardDelta(writer.shard, 1, (), (rows,))
        assert TableView.of(writer.shard.home, [delta]) is not None
        writer.flush_memtable()
        _compact(uri, 1, batch([(1, "a")]))
        assert TableView.of(writer.shard.home, [delta]) is None
        view = TableView.of(writer.shard.home, [replace(delta, generation=2, tables=())])
        assert view is not None
        assert pairs(view.scan()) == [(1, "a")]
        assert pairs(writer.scan()) == [(1, "a")]


def test_the_rows_come_in_the_tables_own_types(tmp_path: Path) -> None:
    with _layered(make_table(tmp_path, base=BASE)) as writer:
        table = writer.scan().read_all()
        assert table.schema.types == KEYED.types
        assert table.schema.names == KEYED.names
