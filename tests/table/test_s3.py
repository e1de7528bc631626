"""A table with a key and full text on S3, credentials given as options: as on local disk."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

from headgate.table.create import create_table
from headgate.table.table import open_table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])


def rows(*pairs: tuple[int, str]) -> pa.RecordBatch:
    return pa.record_batch({"id": [i for i, _ in pairs], "note": [n for _, n in pairs]}, schema=SCHEMA)


def content(table: pa.Table) -> list[tuple[int, str]]:
    return sorted(zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True))


@pytest.mark.s3
def test_puts_deletes_flushes_reopen_and_native_agree(s3_options: dict[str, str], bucket: str) -> None:
    uri = f"s3://{bucket}/t"
    table = create_table(uri, SCHEMA, primary_key="id", full_text="note", storage_options=s3_options)
    with table.writer("single") as writer:
        writer.put(rows((1, "one"), (2, "two"), (3, "three")))
        writer.flush_memtable()
        writer.put(rows((2, "second")))
        writer.delete(pa.record_batch({"id": pa.array([3], pa.int64())}))
        writer.flush_memtable()
        writer.put(rows((4, "four")))
        shard = str(writer.shard.id)
    wanted = [(1, "one"), (2, "second"), (4, "four")]
    table = open_table(uri, storage_options=s3_options)
    assert content(table.scan().read_all()) == wanted
    assert content(table.get(pa.record_batch({"id": pa.array([2, 3], pa.int64())}))) == [(2, "second")]
    native = lance.dataset(uri, storage_options=s3_options).mem_wal_writer(shard)
    assert content(native.lsm_scanner().to_table()) == wanted
    native.close()
