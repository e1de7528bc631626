"""A table that is dropped, and perhaps made anew, under its direct writers (R23): an acknowledgement is a promise."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from headgate import clock
from headgate.errors import DataLoss, Fenced, Poisoned
from headgate.shards.config import WriterConfig
from headgate.shards.home.presence import LOOK_SECONDS
from headgate.shards.writer import ShardWriter
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.support.clones import files

SCHEMA = pa.schema([pa.field("id", pa.int64(), False)])
WAL_ONLY = WriterConfig(enable_memtable=False)
MODES = pytest.mark.parametrize("config", [WriterConfig(), WAL_ONLY], ids=["memtable", "wal_only"])


@dataclass
class Hands:
    """A clock that a test moves."""

    at: float = 1000.0

    def monotonic(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def _made(root: Path, wal_uri: str | None = None) -> Table:
    return create_table(str(root / "t"), SCHEMA, primary_key="id", wal_uri=wal_uri)


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids}, schema=SCHEMA)


def _ids(table: Table) -> list[int]:
    return sorted(table.scan().read_all()["id"].to_pylist())


@pytest.mark.parametrize("anew", [True, False], ids=["made anew", "gone"])
@MODES
def test_on_a_local_disk_no_put_is_acknowledged_once_the_table_is_gone(
    tmp_path: Path, config: WriterConfig, anew: bool
) -> None:
    table = _made(tmp_path)
    table.upsert(_rows(1))
    table.close()
    writer = table.writer("single", config)
    writer.put(_rows(2))
    attached = ShardWriter.attach(writer.claim, WAL_ONLY)
    shutil.rmtree(table.uri)
    now = _made(tmp_path) if anew else None
    before = files(tmp_path)
    with pytest.raises(Fenced, match="was dropped"):
        attached.put(_rows(3))
    with pytest.raises(Fenced, match="was dropped") as ended:
        writer.put(_rows(3))
    assert "not_durable" in ended.value.detail
    left = writer.take_pending()
    assert (sum(batch.num_rows for put in left.failed for batch in put.batches), left.unknown) == (1, ())
    with pytest.raises(Fenced, match="was dropped"):
        writer.close()
    assert files(tmp_path) == before, "the deleted folders did not come back"
    if now is not None:
        now.upsert(_rows(4))
        assert _ids(now) == [4]


def test_an_upsert_by_an_old_handle_is_refused_at_once(tmp_path: Path) -> None:
    old = _made(tmp_path)
    old.upsert(_rows(1))
    shutil.rmtree(old.uri)
    new = _made(tmp_path)
    with pytest.raises(Fenced, match="was dropped"):
        old.upsert(_rows(2))
    open_table(new.uri).upsert(_rows(2))
    assert _ids(new) == [2]


@pytest.mark.parametrize("anew", [True, False], ids=["made anew", "gone"])
@pytest.mark.parametrize("wal", ["elsewhere", "left behind"])
@MODES
def test_where_no_folder_tells_it_a_writer_looks_once_a_minute(
    tmp_path: Path, config: WriterConfig, wal: str, anew: bool
) -> None:
    """As on S3: an entry can be put beside what is deleted, and one request per put leaves none to ask."""
    elsewhere = f"memory://{uuid.uuid4().hex}" if wal == "elsewhere" else None
    hands = Hands()
    with clock.using(hands):
        table = _made(tmp_path, elsewhere)
        writer = table.writer("single", config)
        for number in range(3):
            writer.put(_rows(number))
            hands.at += LOOK_SECONDS + 1
        writer.put(_rows(3))
        assert _ids(table) == [0, 1, 2, 3], "a look that finds the table changes nothing"
        for folder in Path(table.uri).iterdir():
            if wal == "elsewhere" or folder.name != "_mem_wal":
                shutil.rmtree(folder)
        now = _made(tmp_path, elsewhere) if anew else None
        writer.put(_rows(4))
        hands.at += LOOK_SECONDS + 1
        with pytest.raises(Fenced, match="was dropped") as ended:
            writer.put(_rows(5))
        assert "not_durable" in ended.value.detail
        with pytest.raises(Fenced, match="was dropped"):
            writer.close()
        if now is not None:
            assert _ids(now) == []


@MODES
def test_a_writer_that_is_closed_tells_that_what_it_acknowledged_is_gone(tmp_path: Path, config: WriterConfig) -> None:
    table = _made(tmp_path, f"memory://{uuid.uuid4().hex}")
    silent = table.writer("single", config)
    silent.close()
    writer = table.writer("single", config)
    writer.put(_rows(1))
    shutil.rmtree(table.uri)
    writer.put(_rows(2))
    with pytest.raises(DataLoss, match="no manifest"):
        writer.close()


def test_a_wal_that_was_deleted_alone_is_not_begun_again(tmp_path: Path) -> None:
    """A manifest that still has the claim: the folder may be out of sight only, as where a disk is not mounted."""
    table = _made(tmp_path)
    writer = table.writer("single", WAL_ONLY)
    writer.put(_rows(1))
    wal = next(Path(table.uri).glob("_mem_wal/*/wal"))
    wal.rename(tmp_path / "aside")
    with pytest.raises(Poisoned, match="folder of the shard's WAL is gone"):
        writer.put(_rows(2))
    assert not wal.exists()
    (tmp_path / "aside").rename(wal)
    with table.writer("single", WAL_ONLY) as again:
        again.append(writer.take_pending().failed[0].batches)
    assert _ids(table) == [1, 2]
