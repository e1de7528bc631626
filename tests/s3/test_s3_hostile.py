"""Hostile names on S3, where a key ends at 1,024 bytes and Lance reads a URI as a URL: they work or are refused before
anything is written, and every object lies below the table's folder.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from headgate.checkpoints.log.names import list_streams
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput
from headgate.shards.sharding import ByPartition, by_partition
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.decode.api import json as json_decoder
from headgate.streaming.write.rows import RowMaker
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import open_table
from tests.faults.test_hostile import NAMES_ON_S3
from tests.support.clones import CONFIG, rows
from tests.support.life import QUERY, SCHEMA, batch_of, expected_rows, run_task, write_plan, written

pytestmark = [pytest.mark.s3, pytest.mark.real_s3]

LONGEST = f"{'n' * 234}/{'n' * 234}/{'n' * 234}"
"""As many bytes as a folder may have; no part is longer than a file's name may be."""


def keys_of(bucket: str, options: dict[str, str]) -> list[str]:
    return [info.key for info in open_store(f"s3://{bucket}", options).list("")]


def check_keys(bucket: str, options: dict[str, str], folder: str) -> None:
    """All of them below the folder, and none longer than S3 takes."""
    keys = keys_of(bucket, options)
    assert keys
    assert [key for key in keys if not key.startswith(f"{folder}/")] == []
    assert max(len(key.encode()) for key in keys) <= 1024


@NAMES_ON_S3
def test_streams_topics_checkpoints_and_columns_of_any_name_work_or_are_refused(
    bucket: str, s3_options: dict[str, str], name: str
) -> None:
    """In the longest folder that is allowed, so that nothing longer can be written anywhere."""
    uri = f"s3://{bucket}/{LONGEST}"
    schema = pa.schema([*SCHEMA, pa.field(name, pa.string())])
    try:
        table = create_table(
            uri, schema, primary_key=None, sharding=by_partition(), full_text=(name,), storage_options=s3_options
        )
    except InvalidInput:
        assert keys_of(bucket, s3_options) == []
        table = create_table(uri, SCHEMA, sharding=by_partition(), storage_options=s3_options)
    ranges = [SourceRange(name, 0, 0, 20)]
    driver = StreamDriver.open(table.home, name, QUERY, [ByPartition().shard_name(name, 0)])
    maker = RowMaker(table.home.schema, ByPartition(), json_decoder(table.schema), topic=name)
    plan = replace(write_plan(driver, ranges), maker=maker)
    driver.commit(batch_of(plan, written(run_task(plan, ranges)), 0, ranges))
    try:
        table.checkpoint(name=name)
    except InvalidInput:
        assert table.checkpoints() == []
    else:
        assert open_table(uri, storage_options=s3_options, checkpoint=name).scan().read_all().num_rows == 18
    table.flush()
    table.compact()
    again = open_table(uri, storage_options=s3_options)
    assert list_streams(again.home.records) == (name,)
    assert sorted(again.scan(columns=["id"]).read_all()["id"].to_pylist()) == sorted(expected_rows(ranges))
    assert [str(one) for one in fsck(uri, storage_options=s3_options).findings] == []
    check_keys(bucket, s3_options, LONGEST)


@NAMES_ON_S3
def test_tables_of_any_name_work_or_are_refused_before_anything_is_written(
    bucket: str, s3_options: dict[str, str], name: str
) -> None:
    uri = f"s3://{bucket}/in/{name}"
    try:
        table = create_table(uri, SCHEMA, storage_options=s3_options)
    except InvalidInput:
        assert keys_of(bucket, s3_options) == []
        return
    with table.writer("single", CONFIG) as writer:
        writer.put(rows(1))
        writer.flush_memtable()
        writer.put(rows(2))
    table.flush()
    table.compact()
    assert sorted(open_table(uri, storage_options=s3_options).scan(columns=["id"]).read_all()["id"].to_pylist()) == [
        1,
        2,
    ]
    check_keys(bucket, s3_options, f"in/{name}")


@pytest.mark.parametrize("folder", ["a#b", "a\\b", "a%20b", "%2e%2e/b", "a ", LONGEST + "n", "🦀" * 177])
def test_a_folder_that_lance_reads_otherwise_or_s3_cannot_hold_is_refused(folder: str) -> None:
    for uri in (f"s3://bucket/{folder}", f"s3://bucket/{folder}/"):
        with pytest.raises(InvalidInput, match="The folder") as caught:
            open_store(uri)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("folder", ["a b", "100%", "a%b/c", LONGEST, "🦀" * 176, " a"])
def test_any_other_folder_is_taken(folder: str) -> None:
    assert open_store(f"s3://bucket/{folder}").uri == f"s3://bucket/{folder}"
