from __future__ import annotations

from collections.abc import Callable

import lance
import pyarrow as pa
import pytest

from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput
from headgate.shards.sharding import bucket
from headgate.table.create import create_table
from headgate.table.table import open_table
from tests.support.clones import CONFIG, rows
from tests.support.life import SCHEMA
from tests.support.services import S3_SECRETS


@pytest.mark.s3
def test_on_s3_entries_and_sstables_are_copied_by_the_server_and_no_credentials_are_stored(
    s3_options: dict[str, str], make_bucket: Callable[[], str]
) -> None:
    tables, other = make_bucket(), make_bucket()
    source = create_table(f"s3://{tables}/src", SCHEMA, sharding=bucket("id", 2), storage_options=s3_options)
    with source.writer("bucket-00000", CONFIG) as writer:
        writer.put(rows(1, 2))
        writer.flush_memtable()
        writer.put(rows(3))
    source.home.store.reset_operations()
    shallow = source.clone(f"s3://{tables}/shallow")
    counted = source.home.store.operations()
    assert counted["copy"] == 4  # an SSTable of three files, and an entry
    assert counted.get("put", 0) == 1
    deep = source.clone(f"s3://{other}/deep", deep=True, wal_uri=f"s3://{other}/wal")
    for clone in (shallow, deep):
        assert sorted(clone.scan().read_all()["id"].to_pylist()) == [1, 2, 3]
        with clone.writer("bucket-00000", CONFIG) as writer:
            writer.put(rows(4))
        assert sorted(open_table(clone.uri, storage_options=s3_options).scan().read_all()["id"].to_pylist()) == [
            1,
            2,
            3,
            4,
        ]
        stored = [bytes(clone.home.store.get(info.key)) for info in clone.home.store.list("")]
        assert not any(secret.encode() in data for secret in S3_SECRETS for data in stored)
        assert not any(secret in repr(clone) + repr(clone.home) for secret in S3_SECRETS)
    with pytest.raises(InvalidInput, match="same bucket"):
        source.clone(f"s3://{other}/shallow")
    assert not any(True for _ in open_store(f"s3://{other}/shallow", s3_options).list(""))


@pytest.mark.s3
def test_canary_native_still_writes_a_shallow_clone_into_the_bucket_of_its_source(
    s3_options: dict[str, str], make_bucket: Callable[[], str]
) -> None:
    """When this fails, `lance_clone.check_shallow` may let shallow clones cross buckets."""
    tables, other = make_bucket(), make_bucket()
    source = lance.write_dataset(pa.table({"x": [1]}), f"s3://{tables}/canary", storage_options=s3_options)
    with pytest.raises(ValueError, match="not found"):
        source.shallow_clone(f"s3://{other}/canary-clone", source.version, storage_options=s3_options)
    assert any(True for _ in open_store(f"s3://{tables}/canary-clone", s3_options).list(""))
