"""Tables that earlier releases have written: this one reads them, goes on with them, and finds nothing wrong."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.checkpoints.log.records import BatchRecord, OpenRecord, RewindRecord, SchemaRecord
from headgate.checkpoints.spark.rewind import rewind
from headgate.records import FORMAT
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.golden.make import DIRECT, STREAM, changes, dead, equal, flush, open_stream, run
from tests.golden.make import rows as batch_of_rows
from tests.support.life import TOPIC

HERE = Path(__file__).parent
ARCHIVES = sorted(HERE.glob("tables-format-*.tar.gz"))
LIMIT = 300_000
"""Bytes of an archive: they stay in the repository for ever."""


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """At another place than where they were made."""
    archive: Path = request.param
    assert archive.stat().st_size < LIMIT
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "moved", filter="data")
    told = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())
    return tmp_path / "moved", told["tables"]


def rows_of(table: Table) -> list[list[Any]]:
    found = table.scan().read_all()
    return sorted([key, note] for key, note in zip(*(found[name].to_pylist() for name in ("id", "note")), strict=True))


def dead_of(table: Table) -> list[list[int]]:
    return sorted(
        [partition, offset]
        for letters in read_dead_letters(table.home, STREAM)
        for partition, offset in zip(letters["partition"].to_pylist(), letters["offset"].to_pylist(), strict=True)
    )


def check(table: Table, expected: dict[str, Any]) -> None:
    """All that a reader sees."""
    assert rows_of(table) == expected["rows"]
    assert dead_of(table) == expected["dead_letters"]
    head = CommitLog(table.home.records, STREAM, table.uri).read().head
    assert {str(partition): end for (_, partition), end in head.ends.items()} == expected["ends"]
    assert head.rewound is not None
    told = {"record": head.rewound.sequence, "by": head.rewound.by, "reason": head.rewound.reason}
    assert told == expected["rewind"]
    assert head.changed == expected.get("changed", 0)
    for word, ids in expected["search"].items():
        assert sorted(table.search(word, k=1000).column("id").to_pylist()) == ids, word
    for name, kept in expected["checkpoints"].items():
        assert rows_of(open_table(table.uri, checkpoint=name)) == kept


def test_there_is_a_golden_table_of_this_release_s_format() -> None:
    assert f"tables-format-{FORMAT}.tar.gz" in [path.name for path in ARCHIVES]


def test_golden_tables_read_as_they_were_written_and_go_on(unpacked: tuple[Path, dict[str, Any]]) -> None:
    root, tables = unpacked
    for name, expected in tables.items():
        table = open_table(str(root / name))
        keyed = bool(table.primary_key)
        assert [f"{one.code}: {one.what}" for one in fsck(table.uri).findings] == []
        check(table, expected)
        log = CommitLog(table.home.records, STREAM, table.uri)
        kinds = {type(log.record(sequence)) for sequence in log.sequences()}
        assert kinds == {OpenRecord, BatchRecord, RewindRecord, *([SchemaRecord] if "changed" in expected else [])}
        assert lance.dataset(str(root / name)).schema.names == ["id", "note"], "native opens the base"
        # A writer goes on with it: a stream, from where it stands.
        start = expected["ends"]["0"]
        more = equal(start, start + 10)
        driver = open_stream(table, "third")
        run(driver, 0, more, "memtable" if keyed else "wal", "third")
        made = list(changes(more, keyed))
        after = dict(map(tuple, expected["rows"])) if keyed else None
        if after is None:
            rows = sorted([*expected["rows"], *([key, note] for key, note in made)])
        else:
            for key, note in made:
                after.pop(key, None) if note is None else after.update({key: note})
            rows = sorted([key, note] for key, note in after.items())
        assert rows_of(table) == rows
        assert dead_of(table) == sorted([*expected["dead_letters"], *dead(more, keyed)])
        if keyed:
            with table.writer(DIRECT) as writer:
                writer.put(batch_of_rows([(9003, "direct grape"), (9100, "direct lime")]))
            rows = sorted([*(one for one in rows if one[0] != 9003), [9003, "direct grape"], [9100, "direct lime"]])
            assert rows_of(table) == rows
            flush(driver)
            table.flush()
            table.compact()
            assert rows_of(table) == rows
            keys = pa.record_batch({"id": [key for key, _ in rows[:3]]}, schema=pa.schema([table.schema.field("id")]))
            assert table.get([keys]).num_rows == 3
        assert rewind(table.home, STREAM, {(TOPIC, 0): start}).record is not None
        copy = table.clone(str(root / f"{name}-clone"), deep=True, names=[DIRECT] if keyed else [])
        assert rows_of(copy) == rows
        assert [f"{one.code}: {one.what}" for one in fsck(table.uri).findings] == []
        assert rows_of(open_table(table.uri)) == rows


def test_the_golden_tables_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script keeps working, and makes what it says."""
    from tests.golden import make

    monkeypatch.setattr(make, "HERE", tmp_path)
    make.main()
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "moved", filter="data")
    told = json.loads(next(tmp_path.glob("*.json")).read_text())["tables"]
    for name, expected in told.items():
        check(open_table(str(tmp_path / "moved" / name)), expected)
