"""A separate WAL store: the base here, the WAL elsewhere. Never mixed up, cloned, and wiped after a full flush."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli import main
from headgate.connectors.objects import open_store
from headgate.connectors.objects.wal_options import joined_options
from headgate.errors import HeadgateError, InvalidInput, PermissionDenied, WalStoreMismatch
from headgate.shards import names
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.clones import CONFIG, DIRECT, WAL_ONLY, content, ids, open_stream, rows, run_batch, streamed
from tests.support.life import SCHEMA, ranges_of
from tests.support.servers import s3_server as s3_process
from tests.support.services import S3_SECRETS, S3Server, create_bucket, moto_server, s3_options_for

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
    return [one.code for one in fsck(table.uri, storage_options=options).findings]


def test_the_wal_lies_where_it_was_said_and_nowhere_else(places: tuple[str, str], s3_options: dict[str, str]) -> None:
    base, wal = places
    table, _ = streamed(base, wal_uri=wal, storage_options=s3_options)
    wanted = content(table)
    assert entries(wal, s3_options)
    assert entries(base, s3_options) == []
    assert open_table(base, storage_options=s3_options).record.wal_uri == wal
    assert content(open_table(base, storage_options=s3_options, wal_uri=wal)) == wanted
    with pytest.raises(WalStoreMismatch) as refused:
        open_table(base, storage_options=s3_options, wal_uri=f"{base}-other")
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
    table = open_table(base, storage_options=s3_options)
    assert content(table)[0] == wanted, "SSTables have everything"
    # A stream and a writer go on behind what was flushed, and are read and replayed.
    run_batch(open_stream(table), 3, ranges_of(3))
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-4))
    again = open_table(base, storage_options=s3_options)
    assert len(ids(again)) == sum(wanted.values()) + 36 + 1
    with again.writer(DIRECT, CONFIG) as writer:
        assert writer.active_memtable()["id"].to_pylist() == [-4]
    again.flush()
    again.compact()
    assert len(ids(open_table(base, storage_options=s3_options))) == sum(wanted.values()) + 36 + 1


# -- with options of its own -------------------------------------------------------

OTHER_SECRETS = ("AKIAOFTHEOTHER", "the-secret-of-the-other-server")


@pytest.fixture
def other_options(s3_server: S3Server, tmp_path: Path) -> Iterator[dict[str, str]]:
    """What reaches a second server of the same kind, which has other credentials and a bucket `wal`."""
    key, secret = OTHER_SECRETS
    with ExitStack() as stack:
        if s3_server.process is None:
            endpoint = stack.enter_context(moto_server())
        else:
            endpoint = stack.enter_context(s3_process(s3_server.name, tmp_path / "other", OTHER_SECRETS)).endpoint
        bucket = f"wal-{uuid.uuid4().hex[:8]}"
        create_bucket(endpoint, bucket, OTHER_SECRETS)
        yield {
            **s3_options_for(endpoint),
            "aws_access_key_id": key,
            "aws_secret_access_key": secret,
            "bucket": bucket,
        }


def test_base_and_wal_lie_on_two_servers_with_credentials_of_their_own(
    bucket: str, s3_options: dict[str, str], other_options: dict[str, str]
) -> None:
    base, wal = f"s3://{bucket}/t", f"s3://{other_options.pop('bucket')}/t"
    both = joined_options(s3_options, other_options)
    assert both is not None
    table, _ = streamed(base, wal_uri=wal, storage_options=both)
    wanted = content(table)
    assert entries(wal, other_options)
    assert entries(base, s3_options) == []
    opened = open_table(base, storage_options=s3_options, wal_storage_options=other_options)
    assert content(opened) == content(open_table(base, storage_options=both)) == wanted
    # A clone's WALs stay there, come back to the base, or lie in itself; each with the options that reach them.
    there = opened.clone(f"{base}-there", wal_uri=f"{wal}-there", names=[DIRECT])
    back = opened.clone(f"{base}-back", wal_uri=f"{base}-wal", wal_storage_options=s3_options, names=[DIRECT])
    inside = opened.clone(f"{base}-inside", deep=True, names=[DIRECT])
    assert entries(f"{wal}-there", other_options)
    assert entries(f"{base}-wal", s3_options)
    for one in (there, back, inside):
        assert content(one) == wanted
        with one.writer(DIRECT, WAL_ONLY) as writer:
            writer.put(rows(-4))
        assert [str(found) for found in fsck(one.uri, storage_options=one.storage_options).findings] == []
    # The whole life of a table, and after a full flush the WALs' server may be wiped.
    run_batch(open_stream(opened), 3, ranges_of(3))
    opened.flush()
    opened.compact()
    assert opened.collect_garbage(min_age=timedelta(0), apply=True).found
    wipe(wal, other_options)
    again = open_table(base, storage_options=both)
    assert len(ids(again)) == sum(wanted[0].values()) + 36
    run_batch(open_stream(again), 4, ranges_of(4))
    told = CliRunner().invoke(main, ["status", base, *as_arguments(both), "--output", "json"], catch_exceptions=False)
    assert json.loads(told.stdout)["streams"][0]["batch"] == 4
    # Neither server's credentials are anywhere in what was written, printed or pickled for a look.
    shown = [told.output.encode(), repr(again).encode(), repr(again.home).encode()]
    shown += [bytes(open_store(base, s3_options).get(info.key)) for info in open_store(base, s3_options).list("")]
    shown += [bytes(open_store(wal, other_options).get(info.key)) for info in open_store(wal, other_options).list("")]
    assert not [secret for secret in (*S3_SECRETS, *OTHER_SECRETS) for text in shown if secret.encode() in text]


def as_arguments(options: dict[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]


def test_the_wrong_credentials_for_the_wal_are_told_without_them(
    bucket: str, s3_server: S3Server, s3_options: dict[str, str], other_options: dict[str, str]
) -> None:
    base, wal = f"s3://{bucket}/t", f"s3://{other_options.pop('bucket')}/t"
    with pytest.raises(InvalidInput, match="same URI"):
        create_table(base, SCHEMA, wal_uri=base, storage_options=s3_options, wal_storage_options=other_options)
    table = create_table(base, SCHEMA, wal_uri=wal, storage_options=s3_options, wal_storage_options=other_options)
    with table.writer("single", WAL_ONLY) as writer:
        writer.put(rows(1))
    if s3_server.process is None:
        return  # moto lets everybody in
    wrong = {**other_options, "aws_secret_access_key": "not-the-secret"}
    with pytest.raises(HeadgateError) as refused:
        open_table(base, storage_options=s3_options, wal_storage_options=wrong).scan().read_all()
    assert isinstance(refused.value, PermissionDenied)
    assert not [secret for secret in (*OTHER_SECRETS, "not-the-secret") if secret in str(refused.value)]
    # Without options of its own the WALs' store is looked for on the table's server, which has no such bucket.
    with pytest.raises(HeadgateError):
        open_table(base, storage_options=s3_options).scan().read_all()
    assert (
        open_table(base, storage_options=s3_options, wal_storage_options=other_options).scan().read_all().num_rows == 1
    )
