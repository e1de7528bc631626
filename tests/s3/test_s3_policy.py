"""The policy in docs/operations/s3.md is enough for each role over the life of a table, and the least."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.feed.feed import LogFeed
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.checkpoints.snapshots.splits import plan_read
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import rebuild
from headgate.checkpoints.stream.checkpoint import checkpoint_stream
from headgate.connectors.objects import open_store
from headgate.doctor.store import check_store
from headgate.errors import DataLoss, HeadgateError
from headgate.shards.wal.tailer import WalTailer
from headgate.table.fsck import fsck
from tests.s3.recorded_s3 import REFUSED, RecordedS3, Request, recorded_s3
from tests.s3.s3_policy import Need, Policy, Statement, needs_of, policy_of
from tests.support.clones import DIRECT, content, open_stream, run_batch, streamed
from tests.support.life import TOPIC, ranges_of
from tests.support.pages import blocks_run_by
from tests.support.processes import driver as driver_process
from tests.support.runs import Topic, make_table
from tests.support.services import S3_SECRETS, MakeTopic, passing_bucket, s3_options_for
from tests.support.tables import claimed

pytestmark = pytest.mark.s3

one_life = pytest.mark.xdist_group("the life of a table")
"""So that it is lived once, whatever the number of workers."""

SPARK = "Spark's checkpoint"
STATE = "state/orders"
AT_ONCE = timedelta(0)
ABOVE_A_PART = 6 << 20
"""Bytes that Lance uploads in parts: it begins with 5 MB."""


@dataclass
class Life:
    """Which role needed what, as of the table on the page; what it was refused it can do without."""

    server: RecordedS3
    options: dict[str, str]
    needs: dict[str, set[Need]] = field(default_factory=lambda: defaultdict(set))

    @contextmanager
    def by(self, **roles: str) -> Iterator[None]:
        """Per place of the bucket the role of those whose requests come meanwhile."""
        before = len(self.server.requests)
        yield
        for request in self.server.requests[before:]:
            if request.status == REFUSED:
                continue
            found = list(needs_of(request))
            place = found[0].path.partition("/")[0]
            for need in found:
                at = need.path.partition("/")[0] or place
                assert at in roles, f"{request} is at a place where nobody should be"
                self.needs[roles[at]].add(need if at == "state" else need.moved(at, "orders"))


@pytest.fixture(scope="module")
def policy() -> Policy:
    (block,) = blocks_run_by(__file__)
    return policy_of(block)


@pytest.fixture(scope="module")
def life() -> Iterator[dict[str, set[Need]]]:
    with recorded_s3() as server, passing_bucket(server.endpoint, "lake"):
        lived = Life(server, s3_options_for(server.endpoint))
        write(lived)
        read(lived)
        clone(lived)
        maintain(lived)
        lose(lived)
        yield lived.needs


@contextmanager
def refusing(server: RecordedS3, which: Callable[[Request], bool]) -> Iterator[None]:
    server.refuses, before = which, server.refuses
    yield
    server.refuses = before


def above_state(request: Request) -> bool:
    """Whether it looks at what is above Spark's checkpoint, as Hadoop and s3fs do."""
    looked_at = request.query.get("prefix", "") if request.lists else request.key
    return looked_at.rstrip("/") in ("", os.path.dirname(STATE))


def opened(life: Life, place: str = "orders") -> headgate.Table:
    return headgate.open_table(f"s3://lake/{place}", storage_options=life.options)


def write(life: Life) -> None:
    with life.by(orders="writer", wal="writer"):
        table, _ = streamed(
            "s3://lake/orders", wal_uri="s3://lake/wal", full_text=("note",), storage_options=life.options
        )
        driver = open_stream(table)
        for number in range(3, 6):
            run_batch(driver, number, ranges_of(number))
            driver.fold()
        for _ in range(2):
            checkpoint_stream(driver, table.shard_ids(), run_here, max_bytes=1 << 28, keep=1)
        table.checkpoint(name="then")
    with life.by(orders="writer", wal="writer", state=SPARK):
        place = SparkCheckpoint(f"s3a://lake/{STATE}", life.options)
        with refusing(life.server, above_state):
            rebuild(table.home, "s", place, open_store(place.location, life.options))
    with life.by(large="writer"):
        large_rows(life)


def large_rows(life: Life) -> None:
    """A flush that uploads in parts, which are refused at first."""
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("data", pa.binary())])
    table = headgate.create_table("s3://lake/large", schema, storage_options=life.options)
    rows = pa.record_batch({"id": [1], "data": [os.urandom(ABOVE_A_PART)]}, schema=schema)
    with refusing(life.server, lambda request: "partNumber" in request.query):
        writer = table.writer("single")
        writer.put(rows)
        with pytest.raises(HeadgateError):
            writer.flush_memtable()
        end = time.monotonic() + 30
        while not any(one.verb == "DELETE" and "uploadId" in one.query for one in life.server.requests):
            assert time.monotonic() < end, "the upload that failed is never given up"
            time.sleep(0.05)
    with table.writer("single") as writer:
        writer.flush_memtable()
    assert any("partNumber" in one.query and one.status == 200 for one in life.server.requests)


def read(life: Life) -> None:
    with life.by(orders="reader", wal="reader"):
        table = opened(life)
        content(table)
        table.search("direct")
        claimed(table)
        plan_read(table.home, table.shard_ids(), None)
        content(headgate.open_table(table.uri, storage_options=life.options, checkpoint="then"))
        fsck(table.uri, storage_options=life.options)
    with life.by(orders="Spark reader", wal="Spark reader"):
        table = opened(life)
        for hold in (0.001, 60):
            plan_read(table.home, table.shard_ids(), hold)
        feed = LogFeed(table.home, table.shard_ids, "consumer")
        begin = feed.start("earliest")
        feed.plan(begin, feed.latest(begin))
        LogFeed(table.home, table.shard_ids, "consumer").begin(begin)


def clone(life: Life) -> None:
    of_source = {"orders": "Spark reader", "wal": "Spark reader"}
    with life.by(**of_source, shallow="maintenance", deep="maintenance"):
        opened(life).clone("s3://lake/shallow", names=[DIRECT])
        opened(life).clone("s3://lake/deep", deep=True, names=[DIRECT])
    with life.by(shallow="reader", orders="shallow source"):
        content(opened(life, "shallow"))
    with life.by(shallow="writer", orders="shallow source"):
        run_batch(open_stream(opened(life, "shallow")), 6, ranges_of(6))


def maintain(life: Life) -> None:
    with life.by(orders="maintenance", wal="maintenance"):
        table = opened(life)
        table.flush()
        table.drop_checkpoint("then")
        table.compact(policy=BasePolicy(keep_versions=AT_ONCE))
        table.build_index("note")
        collected = table.collect_garbage(min_age=AT_ONCE, apply=True)
        checks = list(check_store(open_store(table.uri, life.options), "table"))
    assert collected.found
    assert {one.state for one in checks} == {"ok"}


def lose(life: Life) -> None:
    """A clone whose source has lost an entry removes what it has made."""
    driver = open_stream(opened(life))
    for number in (6, 7, 8):
        run_batch(driver, number, ranges_of(number))
    shard = opened(life).shard(f"partition:{TOPIC}:1")
    manifest = shard.manifests.latest()
    assert manifest is not None
    tail = [one.position for one in WalTailer(shard).read(manifest.replay_after + 1)]
    shard.wal.delete(shard.wal_key(tail[-2]))
    with life.by(orders="Spark reader", wal="Spark reader", lost="maintenance"), pytest.raises(DataLoss):
        opened(life).clone("s3://lake/lost", names=[DIRECT])


@one_life
def test_every_request_of_a_role_is_allowed(policy: Policy, life: dict[str, set[Need]]) -> None:
    assert life.keys() == policy.roles.keys()
    assert policy.missing(life) == []


@one_life
def test_nothing_is_allowed_that_nobody_needs(policy: Policy, life: dict[str, set[Need]]) -> None:
    by_us = {role: needs for role, needs in life.items() if role != SPARK}
    assert policy.spare(by_us) == []


@one_life
def test_what_is_left_out_of_the_policy_or_too_much_in_it_is_noticed(
    policy: Policy, life: dict[str, set[Need]]
) -> None:
    by_us = {role: needs for role, needs in life.items() if role != SPARK}
    for role in by_us:
        for one in policy.of(role):
            less = replace(policy, roles={**policy.roles, role: policy.roles[role] - {one.sid}})
            assert less.missing({role: life[role]}), (role, one.sid)
    for one in policy.statements:
        others = tuple(other for other in policy.statements if other is not one)
        for action in ("s3:PutObjectAcl", "s3:PutObject" if "s3:PutObject" not in one.actions else "s3:GetObjectAcl"):
            more = replace(policy, statements=(*others, replace(one, actions=(*one.actions, action))))
            assert more.spare(life), (one.sid, action)
    beside = Statement("Read", ("s3:GetObject",), ("arn:aws:s3:::lake/other/*",))
    assert replace(policy, statements=(*policy.statements, beside)).spare(life)


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
def test_sparks_own_checkpoint_on_s3_needs_what_the_page_says_and_is_encrypted(
    policy: Policy, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = [sys.executable, "-m", "headgate.connectors.jars.fetch", "s3a"]
    fetched = subprocess.run(fetch, capture_output=True, text=True)
    assert fetched.returncode == 0, fetched.stderr
    topic = Topic(kafka_servers, make_topic(2), 2)
    topic.put_orders(2000, keys=100)
    table = make_table(tmp_path, headgate.by_partition(key_is_partitioned=True), "id")
    with recorded_s3() as server, passing_bucket(server.endpoint, "lake"):
        environment = {
            "ACCESS_KEY_ID": S3_SECRETS[0],
            "SECRET_ACCESS_KEY": S3_SECRETS[1],
            "ENDPOINT_URL": server.endpoint,
            "REGION": "us-east-1",
            "SERVER_SIDE_ENCRYPTION": "aws:kms",
            "SSE_KMS_KEY_ID": "arn:aws:kms:us-east-1:1:key/2",
        }
        for name, value in environment.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        facts = {"table": table.uri, "servers": topic.servers, "topic": topic.name, "log": str(tmp_path / "driver.log")}
        server.refuses, made = above_state, len(server.requests)
        for _ in range(2):
            with driver_process({**facts, "checkpoint": f"s3a://lake/{STATE}"}) as one:
                assert one.finish() == 0, one.tail()
            topic.put_orders(2000, keys=100)
    written = [one for one in server.requests if one.verb == "PUT" and one.key.startswith(STATE)]
    assert written
    for request in written:
        assert request.headers.get("x-amz-server-side-encryption") == "aws:kms", request
        assert request.headers.get("x-amz-server-side-encryption-aws-kms-key-id") == environment["SSE_KMS_KEY_ID"]
    allowed = [one for one in server.requests[made:] if one.status != REFUSED]
    needs = {need for one in allowed for need in needs_of(one)}
    assert policy.missing({SPARK: needs}) == []
    assert policy.spare({SPARK: needs}) == []
