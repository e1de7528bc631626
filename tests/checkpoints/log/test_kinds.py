"""Every kind of record that the product writes carries a checksum, and no damaged byte of one goes unnoticed."""

from __future__ import annotations

import gzip
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.checkpoints.clone.intent import put_given_up, read_intent
from headgate.checkpoints.feed.feed import LogFeed
from headgate.checkpoints.jobs.state import JobFailure, MaintenanceState, put_state
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.records import OffsetMove
from headgate.checkpoints.offline.retention import BeforePosition, expire
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.lance.files import end_of
from headgate.errors import Corrupt, InvalidInput
from headgate.records import checksum, decode, fields_of, plain, release, text_of
from headgate.search.finalize.marker import marker_bytes
from headgate.search.finalize.segment import OURS, Built, Facts
from headgate.shards.home.choice import put_choice
from headgate.shards.home.record import TableRecord
from headgate.shards.sharding import by_partition
from headgate.table.table import Table
from tests.support import tables as checkpoint_tables
from tests.support.histories import STREAM, make, open_stream, pin

KINDS = {
    "table.json": TableRecord.UNSEALED,
    "synced/* synced": True,
    "streams/s/log/*.json open": False,
    "streams/s/log/*.json batch": False,
    "streams/s/log/*.json rewind": False,
    "streams/s/log/*.json schema": False,
    "streams/s/folds/*.json fold": False,
    "streams/s/archive.json archive": False,
    "archive/s/*.jsonl.gz archive": False,
    "checkpoints/kept/*.json checkpoint": False,
    "consumers/reader/*.json consumer": False,
    "expired/*/*.json expire": False,
    "maintenance/s.json": MaintenanceState.UNSEALED,
    "clone.json clone": False,
    "clone.given_up.json clone abandoned": False,
    "wal_store.json wal_store": False,
    "metadata.lance": True,
}
"""By where it lies and what it says, whether earlier releases wrote it without a checksum."""

NOT_JSON = re.compile(r"clones/.*|index_segments/.*|dead_letters/.*")
"""Slots that two race for hold the winner's name; entries have a checksum of their own."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One of each kind, as it lies in the store after a life with everything in it."""
    home = tmp_path_factory.mktemp("kinds")
    table = make(home / "table", keyed=False)
    LogArchive(table.home.records, STREAM, table.uri).begin()
    pin(table)
    LogFeed(table.home, table.shard_ids, "reader").start("latest")
    table.add_column(pa.field("extra", pa.int64()))
    driver = open_stream(table)
    driver.rewind(tuple(OffsetMove(topic, partition, end, 0) for (topic, partition), end in driver.head.ends.items()))
    put_state(table.home.records, MaintenanceState(STREAM, failures=(JobFailure("flush", 1, "e", "then", "soon"),)))
    sync_base(table.home.store)
    clone = table.clone(str(home / "clone"), deep=True)
    wanted = read_intent(clone.home.store)
    assert wanted is not None
    put_given_up(clone.home.store, wanted, clone.shard_ids())
    put_choice(clone.home.store, clone.table_id, "s3://elsewhere")
    lives = [*records(table), *records(clone), *records(expired(home / "wal"))]
    table.collect_garbage(min_age=timedelta(0), apply=True)  # it archives batches
    return dict([*lives, *records(table), ("metadata.lance", marker())])


def expired(home: Path) -> Table:
    """A WAL-only stream that let entries go."""
    home.mkdir()
    table = checkpoint_tables.make(home)
    driver = checkpoint_tables.open_stream(table)
    for number in range(3):
        checkpoint_tables.run_batch(driver, number, mode="wal")
    expire(table.home, table.shard_ids(), BeforePosition(3), shard=checkpoint_tables.shard_of(table, 0).id)
    return table


def marker() -> bytes:
    built = Built((0,), (), {}, Facts((1,), 2, 3, ("details", b"\x01")))
    return end_of(marker_bytes(built)).metadata[OURS].encode()


def records(table: Table) -> Iterator[tuple[str, bytes]]:
    """What lies below `_headgate/` and is JSON, by a name in which no id is."""
    root = Path(table.uri) / "_headgate"
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root).as_posix()
        if path.is_file() and not NOT_JSON.search(place):
            data = path.read_bytes()
            data = gzip.decompress(data).splitlines()[0] if path.suffix == ".gz" else data
            name = re.sub(
                r"[0-9]{20}(-[0-9]{20}-[0-9a-f]{16})?|[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=synced/)[0-9]+",
                "*",
                place,
            )
            kind = json.loads(data).get("kind", "")
            yield f"{name.removeprefix('*/')} {kind}".strip(), data


def test_every_kind_of_record_is_known(found: dict[str, bytes]) -> None:
    assert sorted(found) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_has_a_checksum_that_holds(found: dict[str, bytes], kind: str) -> None:
    told = fields_of(found[kind], kind)
    assert told["release"] == release()
    assert told["checksum"] == checksum(told)


@pytest.mark.parametrize(("kind", "was_unsealed"), KINDS.items())
def test_a_flipped_byte_is_noticed(found: dict[str, bytes], kind: str, was_unsealed: bool) -> None:
    data = found[kind]
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises((Corrupt, InvalidInput)):
            pytest.fail(f"{place}: {fields_of(flipped, kind, sealed=not was_unsealed)}")


@pytest.mark.parametrize(("kind", "was_unsealed"), KINDS.items())
def test_only_what_earlier_releases_wrote_may_lack_it(found: dict[str, bytes], kind: str, was_unsealed: bool) -> None:
    told = fields_of(found[kind], kind)
    earlier = json.dumps({key: value for key, value in told.items() if key not in ("release", "checksum")}).encode()
    if was_unsealed:
        assert fields_of(earlier, kind, sealed=False).items() < told.items()
    else:
        with pytest.raises(Corrupt):
            fields_of(earlier, kind)


# -- hostile bytes -----------------------------------------------------------------------


@pytest.mark.parametrize("depth", [100, 500, 900, 985, 990, 995, 1000, 100_000])
@pytest.mark.parametrize("sealed", [True, False])
def test_nesting_is_corrupt_however_deep(depth: int, sealed: bool) -> None:
    nested = "[" * depth + "]" * depth
    text = f'{{"format": 1, "table_id": {nested}, "sharding": {nested}, "release": "x"}}'
    with pytest.raises(Corrupt):
        fields_of(text, "It", sealed=sealed)
    with pytest.raises(Corrupt):
        decode(TableRecord, text.replace(', "release": "x"', "").encode(), "It")


def table_record(**changes: object) -> bytes:
    told = plain(TableRecord(uuid.uuid4(), by_partition()))
    return text_of({**told, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"table_id": None},
        {"table_id": "x" * 1_000_000},
        {"sharding": {"kind": "hash"}},
        {"sharding": {"kind": ["bucket"]}},
        {"sharding": {"kind": "bucket", "column": "id", "n": 10**400}},
        {"sharding": {"kind": "bucket", "column": "id", "n": True}},
        {"primary_key": "id"},
        {"primary_key": {"id": 1}},
        {"leftover_shards": [[]]},
        {"wal_undecided": 1},
        {"wal_uri": float("inf")},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_a_valid_checksum_makes_no_sense_of_wrong_values(changes: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        decode(TableRecord, table_record(**changes), "It")


def test_numbers_of_thousands_of_digits_are_corrupt() -> None:
    with pytest.raises(Corrupt):
        fields_of(b'{"format": ' + b"9" * 100_000 + b"}", "It")


def test_a_hint_that_was_written_without_a_checksum_is_read(found: dict[str, bytes]) -> None:
    told = MaintenanceState("s", flushes=3, failures=(JobFailure("flush", 1, "e", "then", "soon"),), running=("flush",))
    assert decode(MaintenanceState, json.dumps(asdict(told), indent=2).encode(), "It") == told
