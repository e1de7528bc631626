"""Appends to a base without a key: which try has landed is told by the base alone, and never guessed (R14)."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pytest

from headgate.connectors.lance.base.append import PREFIX, AppendProgress, appended_marks, progress_of
from headgate.connectors.lance.base.manifest import max_fragment_id
from headgate.errors import Corrupt, Poisoned
from headgate.steps import watching
from headgate.table.table import Table
from tests.support.compactions import (
    append_native,
    claimed,
    in_base,
    layered,
    make_table,
    manifest_of,
    one_round,
    scanned,
    shard_of,
)
from tests.support.datasets import Pairs
from tests.support.stores import Crash


def died_at(table: Table, step: str) -> None:
    def pause(reached: str) -> None:
        if reached == step:
            raise Crash(step)

    with pytest.raises(Crash):
        with watching(pause):
            one_round(claimed(table))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "t", "no key")


@pytest.fixture
def expected(table: Table) -> Pairs:
    append_native(table, (70, "base"))
    return sorted([*layered(table, "no key"), (70, "base")])


def test_an_append_that_landed_is_known_by_its_files(table: Table, expected: Pairs) -> None:
    died_at(table, "finish")
    dataset = lance.dataset(table.uri)
    assert appended_marks(dataset) == {shard_of(table).id: 3}
    assert len(progress_of(dataset)[shard_of(table).id].tries) == 1, "nobody has finished it"
    assert len(manifest_of(table).sstables) == 3, "nor dropped the SSTables"
    assert scanned(table) == expected


def test_an_append_whose_files_were_rewritten_since_is_known_by_its_transaction(table: Table, expected: Pairs) -> None:
    died_at(table, "finish")
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=1000)
    assert len(lance.dataset(table.uri).get_fragments()) == 1
    assert scanned(table) == expected
    table.compact()
    assert scanned(table) == expected


def test_a_try_that_has_not_landed_stays_known_until_another_one_has(table: Table, expected: Pairs) -> None:
    died_at(table, "append")
    died_at(table, "append")
    progress = progress_of(lance.dataset(table.uri))[shard_of(table).id]
    assert len(progress.tries) == 2
    assert scanned(table) == expected
    table.compact()
    assert progress_of(lance.dataset(table.uri))[shard_of(table).id] == AppendProgress(done=3)
    assert scanned(table) == expected


@pytest.mark.parametrize("landed", [True, False])
def test_where_a_version_is_gone_that_would_tell_readers_and_compaction_refuse(
    table: Table, expected: Pairs, landed: bool
) -> None:
    """Somebody rewrote the files and cleaned up by hand, while an append was unfinished."""
    died_at(table, "finish" if landed else "append")
    append_native(table, (71, "base"))
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=1000)
    dataset = lance.dataset(table.uri)
    dataset.cleanup_old_versions(versions=[one["version"] for one in dataset.versions()][:-1])
    with pytest.raises(Poisoned, match="unknown"):
        table.scan()
    with pytest.raises(Poisoned, match="unknown"):
        table.compact()
    assert len(manifest_of(table).sstables) == 3, "nothing was dropped"


def test_fragment_ids_are_never_used_twice(table: Table, expected: Pairs) -> None:
    """An index may still list the id of a fragment that is gone: rows under the same id would count as indexed."""
    append_native(table, (71, "gone"))
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("note", "INVERTED")
    used = max_fragment_id(dataset)
    dataset.delete("id = 71")
    assert max(one.fragment_id for one in lance.dataset(table.uri).get_fragments()) < used
    table.compact()
    assert max(one.fragment_id for one in lance.dataset(table.uri).get_fragments()) > used
    assert lance.dataset(table.uri).to_table(full_text_query="c").num_rows == 2, "rows beside the index are found"
    assert in_base(table) == [pair for pair in expected if pair[1] != "tail"]


@pytest.mark.parametrize("text", ["{", "[]", '{"done": 1}', '{"done": 1, "since": 0, "tries": [{"id": "x"}]}'])
def test_a_damaged_note_is_corrupt(table: Table, expected: Pairs, text: str) -> None:
    lance.dataset(table.uri).update_config({f"{PREFIX}{shard_of(table).id}": text})
    with pytest.raises(Corrupt):
        table.scan()


def test_the_note_is_small_and_says_what_people_need(table: Table, expected: Pairs) -> None:
    table.compact()
    note = lance.dataset(table.uri).config()[f"{PREFIX}{shard_of(table).id}"]
    assert json.loads(note) == {"done": 3, "since": 0, "tries": []}
