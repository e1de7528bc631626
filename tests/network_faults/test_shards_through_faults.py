"""One shard, and one stream's log, on S3 over a network that breaks, stalls, crawls and loses answers.

What was acknowledged is there once, an answer that was lost is recognised as one's own, and the writer goes on by
itself when the fault ends.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects import ObjectStore, open_store
from headgate.errors import Poisoned
from headgate.retry import Retry
from headgate.shards.sharding import ByPartition
from headgate.steps import watching
from headgate.table.fsck import fsck
from headgate.table.table import open_table
from tests.support.clones import content, run_batch, streamed
from tests.support.closing import (
    WAL_ONLY,
    Background,
    closing_checks,
    entry_at,
    home_of,
    open_writer,
    rows,
    wal_positions,
)
from tests.support.life import QUERY, TOPIC, ranges_of
from tests.support.network import CRAWL, FAULTS, LOST, RESET, Fault, Proxy, Toxiproxy, why_no_toxiproxy
from tests.support.services import S3_SECRETS, s3_options_for
from tests.support.stores import FaultyStore

pytestmark = [pytest.mark.s3, pytest.mark.real_s3]

SHARD = uuid.UUID(int=9)
PATIENT = replace(WAL_ONLY, retry=Retry.lasting(60))
PATIENCE = 120.0


@pytest.fixture
def direct(bucket: str, s3_options: dict[str, str]) -> ObjectStore:
    """The store, without a fault between."""
    return open_store(f"s3://{bucket}/t", s3_options)


@pytest.fixture
def through(bucket: str, s3_proxy: Proxy) -> ObjectStore:
    """The same store, by the way that breaks."""
    return open_store(f"s3://{bucket}/t", s3_options_for(s3_proxy.endpoint))


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"it did not happen: {what}"
        time.sleep(0.02)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_writer_goes_on_by_itself_when_the_fault_ends_and_every_acknowledged_row_is_there_once(
    fault: Fault, direct: ObjectStore, through: ObjectStore, s3_proxy: Proxy
) -> None:
    writer = open_writer(through, SHARD, PATIENT)
    acked: list[int] = []
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            writer.put(rows(len(acked)))
            acked.append(len(acked))

    writing = Background(write)
    try:
        until(lambda: len(acked) > 5, "rows before the fault")
        with s3_proxy.under(fault):
            before = len(acked)
            # A fault that breaks is met by a try again; one that delays lets a row through.
            until(lambda: writer.stats().retries > 0 or len(acked) > before + 1, f"{fault.name} is felt")
        before = len(acked)
        until(lambda: len(acked) > before + 5 or not writing.running, "rows after the fault")
    finally:
        done.set()
    writing.result()
    positions = wal_positions(home_of(direct).shard(SHARD))
    assert len(positions) == len(acked) + 1, "one entry per row, and the barrier"
    closing_checks(direct, SHARD, acked, acked, [writer])


def test_an_answer_that_is_lost_after_the_entry_was_stored_makes_no_second_entry(
    direct: ObjectStore, through: ObjectStore, s3_proxy: Proxy
) -> None:
    shard = home_of(direct).shard(SHARD)
    writer = open_writer(through, SHARD, PATIENT)
    assert writer.put(rows(0)).positions == (1,)
    with s3_proxy.under(LOST):
        put = Background(lambda: writer.put(rows(1)))
        until(lambda: 2 in wal_positions(shard), "the entry is stored")
        until(lambda: writer.stats().retries > 0, "nobody told the writer so")
        assert put.running
    assert put.result().positions == (2,)
    assert writer.put(rows(2)).positions == (3,)
    assert wal_positions(shard) == [0, 1, 2, 3]
    assert len({entry_at(shard, position).header.entry_id for position in range(4)}) == 4
    closing_checks(direct, SHARD, [0, 1, 2], [0, 1, 2], [writer])


@pytest.mark.parametrize("folder", ["/manifest/", "/wal/"], ids=["claim", "barrier"])
def test_an_opener_whose_answers_are_lost_holds_the_shard_and_fences_nobody_else(
    folder: str, direct: ObjectStore, through: ObjectStore, s3_proxy: Proxy
) -> None:
    shard = home_of(direct).shard(SHARD)
    first = open_writer(direct, SHARD)
    first.put(rows(1))
    watched = FaultyStore(through)
    putting = watched.stall("put_if_absent", folder)
    opening = Background(lambda: open_writer(watched, SHARD, PATIENT))
    putting.wait()
    before = shard.manifests.versions(), wal_positions(shard)
    with s3_proxy.under(LOST):
        putting.release()
        until(lambda: (shard.manifests.versions(), wal_positions(shard)) != before, "it is stored")
        assert opening.running, "nobody told the opener so"
    writer = opening.result()
    stored = shard.manifests.latest()
    assert stored is not None
    assert stored.claim_id == writer.claim.claim_id
    assert writer.put(rows(2)).positions
    closing_checks(direct, SHARD, [1, 2], [1, 2], [first, writer])


def test_a_commit_whose_answer_is_lost_is_one_record_and_one_batch(
    bucket: str, s3_options: dict[str, str], s3_proxy: Proxy
) -> None:
    uri = f"s3://{bucket}/stream"
    before, _ = streamed(uri, storage_options=s3_options)
    wanted = sum(content(before)[0].values())
    log = CommitLog(before.home.records, "s", before.uri)
    table = open_table(uri, storage_options=s3_options_for(s3_proxy.endpoint))
    names = [ByPartition().shard_name(TOPIC, partition) for partition in (0, 1)]
    sequences: set[int] = set()

    def break_at_the_commit(step: str) -> None:
        if step == "commit" and len(log.sequences()) == len(sequences):
            s3_proxy.begin(LOST)

    driver = StreamDriver.open(table.home.retrying(Retry.lasting(60)), "s", QUERY, names)
    sequences |= log.sequences()
    with watching(break_at_the_commit):
        running = Background(lambda: run_batch(driver, 3, ranges_of(3)))
    until(lambda: len(log.sequences()) > len(sequences), "the record is stored")
    assert running.running, "nobody told the driver so"
    s3_proxy.end(LOST)
    record = running.result()
    assert log.sequences() == {*sequences, record.sequence}
    run_batch(driver, 4, ranges_of(4))
    assert sum(content(before)[0].values()) == wanted + 2 * 36
    assert fsck(uri, storage_options=s3_options).findings == ()


@pytest.mark.parametrize("fault", [RESET, LOST], ids=lambda fault: fault.name)
def test_a_fault_that_outlasts_the_patience_is_told_with_table_shard_and_next_step_and_no_credential(
    fault: Fault, direct: ObjectStore, through: ObjectStore, s3_proxy: Proxy
) -> None:
    writer = open_writer(through, SHARD, replace(WAL_ONLY, retry=Retry(attempts=1, base=0)))
    writer.put(rows(0))
    with s3_proxy.under(fault), pytest.raises(Poisoned) as caught:
        writer.put(rows(1))
    error = caught.value
    assert (error.table, error.shard, error.position) == (through.uri, str(SHARD), 2)
    assert "open the shard again" in str(error)
    shown = "".join(traceback.format_exception(error))
    assert not any(secret in shown for secret in S3_SECRETS)
    again = open_writer(through, SHARD, PATIENT)
    again.put(rows(2))
    closing_checks(direct, SHARD, [0, 2], [0, 1, 2], [writer, again])


def test_a_writer_goes_on_when_the_way_itself_dies_and_is_there_again(
    direct: ObjectStore, s3_endpoint: str, bucket: str, tmp_path: Path
) -> None:
    if reason := why_no_toxiproxy():
        pytest.skip(reason)
    with Toxiproxy(tmp_path) as own:
        way = own.proxy("s3", urlsplit(s3_endpoint).netloc)
        writer = open_writer(open_store(f"s3://{bucket}/t", s3_options_for(way.endpoint)), SHARD, PATIENT)
        writer.put(rows(0))
        own.kill()
        put = Background(lambda: writer.put(rows(1)))
        until(lambda: writer.stats().retries > 0, "nobody is there")
        own.start()
        put.result()
        assert writer.put(rows(2)).positions == (3,)
        closing_checks(direct, SHARD, [0, 1, 2], [0, 1, 2], [writer])


@pytest.mark.deep
def test_an_object_that_comes_slowly_is_read_for_as_long_as_it_comes(
    direct: ObjectStore, through: ObjectStore, s3_proxy: Proxy
) -> None:
    """At 1 KB/s: longer than a request usually may take, its retries included."""
    body = os.urandom(80 << 10)
    direct.put_if_absent("slow", body)
    with s3_proxy.under(CRAWL):
        assert bytes(through.get("slow")) == body
