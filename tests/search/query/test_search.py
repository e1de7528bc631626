"""table.search: what is found, when, and what is refused."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.records import Batch, ShardClaim, ShardPart
from headgate.connectors.lance.fts import index as full_text
from headgate.errors import DataLoss, InvalidInput
from headgate.search.query import superseded
from headgate.search.query.searcher import FIRST_LOOK, Searcher
from headgate.shards.config import WriterConfig
from headgate.shards.home.home import home_at
from headgate.shards.rows.view import TableView
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.encoder import encode_rows
from headgate.shards.wal.entry import Tags
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.search.query.histories import INDEX, SCHEMA, Oracle, check_searches, differ, make_table, rows, text, told
from tests.support.tables import claimed


def _keys(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def _add_to_base(table: Table, *pairs: tuple[int, str | None]) -> None:
    lance.write_dataset(rows(list(pairs)).cast(table.schema), table.uri, mode="append")


def _ids(found: pa.Table) -> list[int]:
    ids: list[int] = found.column("id").to_pylist()
    return ids


def _files(table: Table) -> set[str]:
    return {str(path) for path in Path(table.uri).rglob("*") if path.is_file()}


def _lived(path: Path, **how: Any) -> Table:
    """A table with rows in an indexed base, in a base that is not, in SSTables and in the tail."""
    # The same texts in another table would be known already.
    table, chance = make_table(path, **how), random.Random(f"{path.parent.name}/{path.name}")
    _add_to_base(table, *((i, text(chance)) for i in range(60)))
    table.build_index("note")
    _add_to_base(table, *((i, text(chance)) for i in range(60, 90)))
    with table.writer("single") as writer:
        for start in (0, 40):
            writer.put(rows([(i, text(chance)) for i in range(start, start + 100, 3)]))
            writer.flush_memtable()
        writer.put(rows([(i, text(chance)) for i in range(1, 150, 5)]))
        if table.primary_key:
            writer.delete(_keys(2, 40, 61))
    return table


# -- what is found ------------------------------------------------------------------------------


def test_the_newest_row_is_found_and_overwritten_and_deleted_ones_are_not(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    _add_to_base(table, (1, "red base"), (2, "red base"), (3, "red base"), (4, "red base"))
    table.build_index("note")
    with table.writer("single") as writer:
        writer.put(rows([(1, "red sstable"), (5, "red sstable")]))
        writer.delete(_keys(2))
        writer.flush_memtable()
        writer.put(rows([(1, "blue tail"), (6, "red tail")]))
        writer.delete(_keys(3, 5))
        assert sorted(_ids(table.search("red"))) == [4, 6]
        assert _ids(table.search("sstable")) == []
        assert _ids(table.search("blue")) == [1]


def test_rows_are_found_and_scored_as_native_does_over_everything(tmp_path: Path) -> None:
    for keyed in (True, False):
        table = _lived(tmp_path / str(keyed), keyed=keyed)
        check_searches(table, Oracle(table), random.Random(5), 40)


def test_a_base_alone_is_answered_by_native_itself_with_the_same_result(tmp_path: Path) -> None:
    table, chance = make_table(tmp_path / "t", parameters={"with_position": True}), random.Random(4)
    _add_to_base(table, *((i, text(chance)) for i in range(200)))
    table.build_index("note")
    oracle = Oracle(table, {"with_position": True})
    searcher = table.searcher()
    check_searches(table, oracle, chance, 30, positions=True)
    assert searcher._prepare("note").only_base
    assert searcher._prepare("note").base.exact
    lance.dataset(table.uri).delete("id < 50")
    assert not table.searcher()._prepare("note").base.exact
    check_searches(table, Oracle(table, {"with_position": True}), chance, 30, positions=True)


def test_a_row_is_found_as_soon_as_its_batch_is_committed_and_not_before(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    appender = WalAppender.open(table.shard("single"), owner="s")
    claim = ShardClaim(appender.shard.id, appender.epoch, appender.claim_id, appender.next_position - 1)
    log = CommitLog(table.home.records, "s", table.uri).open("q", {"single": claim})
    for number in range(3):
        attempt = uuid.uuid4().hex
        chunk = encode_rows(table.home.schema.stored_rows(rows([(number, "red")])))
        done = appender.append([chunk], Tags(attempt_id=attempt))
        assert len(_ids(table.search("red"))) == number
        part = ShardPart(appender.shard.id, attempt, (done.position,), done.rows, done.nbytes)
        log.commit(Batch(query_id="q", batch_id=number, shards={"single": part}), {})
        assert len(_ids(table.search("red"))) == number + 1


def test_a_held_searcher_stays_at_its_instant(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    with table.writer("single") as writer:
        writer.put(rows([(1, "red")]))
        searcher = table.searcher()
        writer.put(rows([(2, "red")]))
        assert (_ids(searcher.search("red")), sorted(_ids(table.search("red")))) == ([1], [1, 2])


def test_hidden_hits_never_crowd_out_visible_ones(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    with table.writer("single") as writer:
        writer.put(rows([(i, "red " * (50 - i)) for i in range(50)]))
        writer.flush_memtable()
        writer.delete(_keys(*range(49)))
        assert _ids(table.search("red", k=2)) == [49]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_search_and_a_lookup_right_after_a_crash_equal_the_ones_before(tmp_path: Path, flushed: bool) -> None:
    table = make_table(tmp_path / "t")
    writer = table.writer("single")
    writer.put(rows([(1, "red apple"), (2, "red red pear"), (3, "blue plum")]))
    if flushed:
        writer.flush_memtable()
    writer.put(rows([(4, "red fig"), (3, "red plum and a long tail of words")]))
    writer.delete(_keys(1))

    def answers() -> list[Any]:
        again = open_table(table.uri)
        found = again.get(_keys(1, 2, 3, 100)).sort_by("id")
        return [again.search("red").to_pylist(), again.search("plum pear").to_pylist(), found.to_pylist()]

    before = answers()
    del writer
    with table.writer("single"):
        assert answers() == before
    assert len(before[0]) == 3


def test_a_search_writes_nothing_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _lived(tmp_path / "t")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = _files(table)
    assert table.search("red apple", k=1000).num_rows
    assert _files(table) == before
    assert not list((tmp_path / "temporary").iterdir())


# -- result, filter --------------------------------------------------------------------------------


def test_the_columns_that_were_asked_for_come_with_the_score(tmp_path: Path) -> None:
    table = _lived(tmp_path / "t")
    for columns in (["size"], ["size", "id"], [], None):
        found = table.search("red", columns=columns)
        assert found.schema.names == [*(SCHEMA.names if columns is None else columns), "_score"]
        assert found.column("_score").to_pylist() == sorted(found.column("_score").to_pylist(), reverse=True)
        assert found.schema.field("_score").type == pa.float32()
        assert found.num_rows == 10
    nothing = table.search("nowhere")
    assert (nothing.num_rows, nothing.schema) == (0, table.search("red").schema)
    assert table.search("the of").num_rows == table.search("").num_rows == 0


def test_a_filter_that_few_of_many_hits_pass_is_asked_of_the_sources(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    many = 3 * FIRST_LOOK
    _add_to_base(table, *((i, "red " * (2 + i % 7)) for i in range(many)))
    table.build_index("note")
    with table.writer("single") as writer:
        writer.put(rows([(many + i, "red") for i in range(many)]))
        writer.flush_memtable()
        writer.put(rows([(2 * many + i, "red") for i in range(many)]))
    oracle = Oracle(table)
    for filter in (f"id % {many} = 7", f"id IN (3, {many + 3}, {2 * many + 3})", "id < 0"):
        ours = told(table.search("red", k=5, filter=filter))
        assert differ(ours, oracle.answer("red", "any", filter), 5) is None
        assert len(ours) == (0 if filter == "id < 0" else 3)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"column": "size"}, "no full-text index|has no full-text search"),
        ({"column": "nowhere"}, "no full-text index"),
        ({"k": 0}, "k must be at least 1"),
        ({"match": "some"}, "any, all or phrase"),
        ({"match": "phrase"}, "positions"),
        ({"filter": "nowhere = 1"}, "rejects the filter"),
        ({"columns": ["nowhere"]}, "not found"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, how: dict[str, Any], match: str) -> None:
    table = make_table(tmp_path / "t")
    with pytest.raises(InvalidInput, match=match):
        table.search("red", **how)


def test_a_column_is_named_where_none_or_several_are_indexed(tmp_path: Path) -> None:
    two = pa.schema([*SCHEMA, pa.field("more", pa.string())])
    with pytest.raises(InvalidInput, match="2 columns"):
        create_table(str(tmp_path / "two"), two, primary_key="id", full_text=["note", "more"]).search("red")
    with pytest.raises(InvalidInput, match="no columns"):
        create_table(str(tmp_path / "none"), two, primary_key="id").search("red")


# -- the table as it lives --------------------------------------------------------------------------


def test_words_of_two_characters_are_found_in_text_without_spaces(tmp_path: Path) -> None:
    pairs = {"base_tokenizer": "ngram", "min_ngram_length": 2, "max_ngram_length": 2}
    table = create_table(
        tmp_path / "t", "id bigint not null, note string", primary_key="id", full_text={"note": dict(pairs)}
    )
    with table:
        for number, step in enumerate(("flush", "compact", "close")):
            table.upsert(pa.table({"id": [2 * number, 2 * number + 1]} | {"note": ["我们在北京吃饭", "東京の天気"]}))
            for word, row in (("北京", 0), ("天気", 1)):
                found = table.search(word, k=10)["id"].to_pylist()
                assert sorted(found) == list(range(row, 2 * number + 2, 2)), (word, number)
            getattr(table, step)()


def test_sstables_without_the_index_of_today_are_searched_by_its_words(tmp_path: Path) -> None:
    """The index came, or was replaced by one of other parameters, after the SSTable."""
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer("single") as writer:
        writer.put(rows([(1, "red gates"), (2, "green")]))
        writer.flush_memtable()
    for parameters in ({"stem": True}, {"stem": False}, {"stem": True, "custom_stop_words": ["green"]}):
        dataset = lance.dataset(table.uri)
        dataset.create_scalar_index("note", "INVERTED", name=INDEX, replace=True, **parameters)
        with table.writer("single") as writer:
            writer.put(rows([(3, "gates")]))
            writer.flush_memtable()
        oracle = Oracle(table, parameters)
        for words in ("gate", "gates", "green red"):
            assert differ(told(table.search(words)), oracle.answer(words, "any"), 10) is None


def test_rows_from_before_a_column_was_renamed_are_found_under_its_new_name(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    _add_to_base(table, (9, "red base"))
    with table.writer("single") as writer:
        writer.put(rows([(1, "red"), (2, "red")]))
        writer.flush_memtable()
        writer.put(rows([(2, "green"), (3, "red")]))
    dataset = lance.dataset(table.uri)
    dataset.alter_columns({"path": "note", "name": "remark"})
    again = open_table(table.uri)
    assert sorted(_ids(again.search("red", column="remark"))) == [1, 3, 9]
    assert again.search("red").schema.names == ["id", "remark", "size", "_score"]
    with pytest.raises(InvalidInput, match="columns have changed"):
        table.search("red")


def test_a_table_that_is_made_again_in_the_same_place_shows_nothing_of_the_old_one(tmp_path: Path) -> None:
    for note in ("red old", "red new"):
        table = make_table(tmp_path / "t")
        _add_to_base(table, (1, "red base"), (2, "red base"))
        with table.writer("single") as writer:
            writer.put(rows([(1 if note == "red old" else 2, note)]))
        assert sorted(hit[2] for hit in told(table.search("red"))) == ["red base", note]
        assert sorted(_ids(table.search("red"))) == [1, 2]
        shutil.rmtree(table.uri)


def test_sstables_and_rows_that_native_wrote_are_searched(tmp_path: Path) -> None:
    table, chance = make_table(tmp_path / "t"), random.Random(8)
    _add_to_base(table, *((i, text(chance)) for i in range(50)))
    for start in (0, 30):
        native = lance.dataset(table.uri).mem_wal_writer(str(table.shard("single").id))
        native.put(rows([(i, text(chance)) for i in range(start, start + 60, 2)]).to_batches()[0])
        native.delete(_keys(start + 4))
        # Closing flushes.
        native.close()
    assert len(claimed(table)) == 1
    assert claimed(table)[0].sstables == 2
    with table.writer("single") as writer:
        writer.put(rows([(2, "red")]))
    check_searches(table, Oracle(table), chance, 20)


def test_a_key_of_several_columns_hides_only_whole_keys(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("a", pa.int64(), False), pa.field("b", pa.string(), False), pa.field("note", pa.string())]
    )
    table = create_table(str(tmp_path / "t"), schema, primary_key=["a", "b"], full_text="note")

    def made(*keys: tuple[int, str], note: str) -> pa.Table:
        columns = {"a": [a for a, _ in keys], "b": [b for _, b in keys], "note": [note] * len(keys)}
        return pa.table(columns, schema=table.schema)

    base = made((1, "x"), (1, "y"), (2, "x"), (2, "y"), note="red base")
    lance.write_dataset(base, table.uri, mode="append")
    table.build_index("note")
    with table.writer("single") as writer:
        writer.put(made((1, "x"), (3, "x"), note="red sstable"))
        writer.flush_memtable()
        writer.put(made((3, "x"), (2, "y"), note="red tail"))
        writer.delete(pa.record_batch({"a": [2], "b": ["x"]}, schema=pa.schema(list(table.schema)[:2])))
    found = sorted((hit["a"], hit["b"], hit["note"]) for hit in table.search("red").to_pylist())
    assert found == [(1, "x", "red sstable"), (1, "y", "red base"), (2, "y", "red tail"), (3, "x", "red tail")]
    # Four documents of two words that all have it: ln(1 + 0.5 / 4.5) in each.
    assert {round(hit["_score"], 4) for hit in table.search("red").to_pylist()} == {0.1054}


def test_a_clone_is_searched_by_the_index_files_of_its_parent(tmp_path: Path) -> None:
    table = _lived(tmp_path / "t")
    clone = table.clone(str(tmp_path / "clone"))
    assert told(clone.search("red apple", k=1000)) == told(table.search("red apple", k=1000))
    assert clone.searcher()._prepare("note").base.segments[0].uri.startswith(table.uri)


def test_a_dataset_with_stable_row_ids_is_searched(tmp_path: Path) -> None:
    """No table of ours has them; the base of one that native made may."""
    some = rows([(i, "red" if i % 2 else "green gate") for i in range(40)])
    dataset = lance.write_dataset(some, str(tmp_path / "d"), enable_stable_row_ids=True, max_rows_per_file=15)
    dataset.create_scalar_index("note", "INVERTED", name=INDEX)
    assert dataset.has_stable_row_ids
    dataset.delete("id < 6")
    dataset.update({"note": "'red now'"}, where="id = 10")
    dataset.optimize.compact_files()
    view = TableView.of(home_at(str(tmp_path / "d")), [])
    assert view is not None
    oracle = Oracle(view)
    for words in ("red", "green now", "now", "gate"):
        assert differ(told(Searcher(view).search(words, k=1000)), oracle.answer(words, "any"), 1000) is None


def test_an_index_whose_files_are_gone_is_data_loss(tmp_path: Path) -> None:
    table = _lived(tmp_path / "t")
    for file in Path(table.uri).glob("_indices/*/part_*_docs.lance"):
        file.unlink()
    with pytest.raises(DataLoss, match="missing or damaged"):
        table.search("red")


def test_many_threads_search_beside_a_writer_that_flushes(tmp_path: Path) -> None:
    table, failures, stop = make_table(tmp_path / "t"), [], threading.Event()
    done = 0
    with table.writer("single", WriterConfig(max_memtable_rows=9)) as writer:

        def read() -> None:
            while not stop.is_set():
                before = done
                found = table.search("red", k=1000)
                if len(set(_ids(found))) != found.num_rows or found.num_rows < min(before, 20):
                    failures.append(f"{before} rows were durable, a search showed {sorted(_ids(found))}")

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for i in range(40):
            writer.put(rows([(i % 20, f"red {i}")]))
            done = i + 1
        stop.set()
        for reader in readers:
            reader.join()
    assert not failures, failures[0]


# -- what it costs -----------------------------------------------------------------------------------


class _Indexed:
    """Counts the rows that are indexed in memory; they are indexed all the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        index = full_text.index_texts

        def counting(texts: pa.ChunkedArray, parameters: Any) -> Any:
            self.rows.append(len(texts))
            return index(texts, parameters)

        monkeypatch.setattr(full_text, "index_texts", counting)


def test_a_table_that_did_not_change_is_prepared_once_and_new_rows_cost_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed = _Indexed(monkeypatch)
    table = _lived(tmp_path / "t")
    table.search("red")
    first = list(indexed.rows)
    # The base's second fragment and the tail: nothing that has an index of its own.
    assert sum(first) == 30 + 30 + 3
    for words in ("red", "green apple", "nowhere"):
        table.search(words)
    assert indexed.rows == first
    with table.writer("single") as writer:
        writer.put(rows([(500, "red fresh")]))
    assert 500 in _ids(table.search("fresh"))
    assert sum(indexed.rows) - sum(first) <= 30 + 3 + 1


@pytest.mark.parametrize("indexed", [True, False])
def test_keys_are_asked_of_the_base_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexed: bool) -> None:
    table = make_table(tmp_path / "t")
    _add_to_base(table, *((i, "red") for i in range(2_000)))
    table.build_index("note")
    if indexed:
        lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    asked: list[int] = []
    find = superseded._find

    def counting(dataset: Any, key: Any, new: pa.Table) -> Any:
        asked.append(new.num_rows)
        return find(dataset, key, new)

    monkeypatch.setattr(superseded, "_find", counting)
    with table.writer("single") as writer:
        for number in (3, 4, 5_000, 3):
            writer.put(rows([(number, "green")]))
            found = table.search("red", k=10_000)
            assert not {3, 4, 5_000} & set(_ids(found)) - ({4} if number == 3 and len(asked) == 1 else set())
        assert found.num_rows == 1_998
    assert asked == [1, 1, 1]


def test_sstables_with_stop_words_of_ones_own_are_searched_by_their_own_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", parameters={"custom_stop_words": ["green"]})
    with table.writer("single") as writer:
        writer.put(rows([(1, "red gates"), (2, "green")]))
        writer.flush_memtable()
    indexed = _Indexed(monkeypatch)
    assert _ids(table.search("red green")) == [1]
    assert indexed.rows == [], "nothing was indexed anew"


# -- on S3 ------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_a_table_on_s3_is_searched(s3_options: dict[str, str], bucket: str) -> None:
    table = create_table(f"s3://{bucket}/t", SCHEMA, full_text="note", storage_options=s3_options)
    with table.writer("single") as writer:
        writer.put(rows([(1, "red"), (2, "green")]))
        writer.flush_memtable()
        writer.put(rows([(3, "red gates")]))
    base = rows([(4, "red base"), (5, "blue")]).cast(table.schema)
    lance.write_dataset(base, table.uri, mode="append", storage_options=s3_options)
    assert sorted(_ids(table.search("red"))) == [1, 3, 4]
    table.build_index("note")
    assert sorted(_ids(table.search("red"))) == [1, 3, 4]
    assert _ids(table.search("gate red", match="all")) == [3]
