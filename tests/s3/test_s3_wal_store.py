"""A separate WAL store: the base here, the WAL elsewhere. Never mixed up, cloned, and wiped after a full flush."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clone_tables import CONFIG, DIRECT, WAL_ONLY, content, ids, open_stream, rows, run_batch, streamed
from stream_life import ranges_of

from headgate.connectors.objects import open_store
from headgate.errors import WalStoreMismatch
from headgate.shards import names
from headgate.streaming.fsck import fsck
from headgate.table import Table, open_table

pytestmark = [pytest.mark.s3, pytest.mark.real_s3]

DEEP = pytest.mark.deep
PLACES = [pytest.param("prefix", marks=DEEP), "bucket", "disk", pytest.param("disk-base", marks=DEEP)]
"""The WAL under another prefix, in another bucket, on local disk; or on S3 with the base on local disk."""


@pytest.fixture(params=PLACES)
def places(request: pytest.FixtureRequest, make_bucket: Callable[[], str], tmp_path: Path) -> tuple[str, str]:
    """Base and WAL."""
    here = make_bucket()
    return {
        "prefix": (f"s3://{here}/lake/t", f"s3://{here}/wal/t"),
        "bucket": (f"s3://{here}/t", f"s3://{make_bucket()}/t"),
        "disk": (f"s3://{here}/t", str(tmp_path / "wal")),
        "disk-base": (str(tmp_path / "t"), f"s3://{here}/wal"),
    }[request.param]


def entries(uri: str, options: dict[str, str]) -> list[str]:
    """WAL entries of shards below that place."""
    listed = (info.key for info in open_store(uri, options).list(""))
    return [key for key in listed if key.startswith("_mem_wal/") and names.wal_position(key) is not None]


def wipe(uri: str, options: dict[str, str]) -> None:
    store = open_store(uri, options)
    for info in [*store.list("")]:
        store.delete(info.key)


def findings(table: Table, options: dict[str, str]) -> list[str]:
    return [one.code for one in fsck(table.uri, options).findings]


def test_the_wal_lies_where_it_was_said_and_nowhere_else(places: tuple[str, str], s3_options: dict[str, str]) -> None:
    base, wal = places
    table, _ = streamed(base, wal_uri=wal, storage_options=s3_options)
    wanted = content(table)
    assert entries(wal, s3_options)
    assert entries(base, s3_options) == []
    assert open_table(base, s3_options).record.wal_uri == wal
    assert content(open_table(base, s3_options, wal_uri=wal)) == wanted
    with pytest.raises(WalStoreMismatch) as refused:
        open_table(base, s3_options, wal_uri=f"{base}-other")
    assert wal in str(refused.value)
    assert f"{base}-other" in str(refused.value)
    # A clone has its own: in itself, and, the other way to change the WAL store, in another place.
    inside = table.clone(f"{base}-inside", names=[DIRECT])
    moved = table.clone(f"{base}-moved", wal_uri=f"{wal}-moved", names=[DIRECT])
    assert content(inside) == content(moved) == wanted
    for one in (inside, moved):
        with one.writer(DIRECT, WAL_ONLY) as writer:
            writer.put(rows(-4))
        assert findings(one, s3_options) == []
    assert entries(f"{base}-inside", s3_options)
    assert entries(f"{base}-moved", s3_options) == []
    assert len(entries(f"{wal}-moved", s3_options)) > 0
    assert content(table) == wanted


def test_after_a_full_flush_the_wal_store_may_be_wiped(places: tuple[str, str], s3_options: dict[str, str]) -> None:
    base, wal = places
    table, _ = streamed(base, wal_uri=wal, storage_options=s3_options)
    wanted = content(table)[0]
    table.flush()
    wipe(wal, s3_options)
    table = open_table(base, s3_options)
    assert content(table)[0] == wanted, "SSTables have everything"
    # A stream and a writer go on behind what was flushed, and are read and replayed.
    run_batch(open_stream(table), 3, ranges_of(3))
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-4))
    again = open_table(base, s3_options)
    assert len(ids(again)) == sum(wanted.values()) + 36 + 1
    with again.writer(DIRECT, CONFIG) as writer:
        assert writer.active_memtable()["id"].to_pylist() == [-4]
    again.flush()
    again.compact()
    assert len(ids(open_table(base, s3_options))) == sum(wanted.values()) + 36 + 1
