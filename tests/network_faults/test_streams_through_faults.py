"""Whole streams, Kafka to Spark to S3, over networks that break, stall, crawl and lose answers, on either side.

In the end the table is the topic row by row. A fault of a few seconds ends no query; one that outlasts all patience
ends it with an error that can be read, and the next start goes on. Replay with HEADGATE_SEED=<seed>, which is printed:
the faults come in the same order and last as long, the machine's timing is its own.
"""

from __future__ import annotations

import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.errors import HeadgateError, Poisoned, Transient
from headgate.streaming.spark.session import SparkFailed
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.network import FAULTS, LOST, RESET, Fault, ProxiedKafka, Proxy, replayable, seed_of_run, varied
from tests.support.runs import SCHEMA, Stream, Topic, check_table
from tests.support.services import S3_SECRETS, s3_options_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.s3, pytest.mark.real_s3]

PATIENCE = 300.0
EVER = {"processingTime": "0 seconds"}


@dataclass
class Fired:
    """A stream into a table on S3, its two networks, and who starts it again when it ends."""

    stream: Stream
    topic: Topic
    direct: Table
    """The table, reached without a fault."""
    networks: dict[str, Proxy]
    errors: list[HeadgateError] = field(default_factory=list)
    """What ended the query."""

    @contextmanager
    def running(self, **options: Any) -> Iterator[None]:
        self.start(**options)
        try:
            yield
        finally:
            self.query.stop()
            self.sink.close()

    def start(self, **options: Any) -> None:
        self.sink = self.stream.sink(**options)
        self.query = self.stream.start(self.sink, trigger=EVER)

    def catch_up(self) -> None:
        """Until the table has all of the topic. A query that ended is started again, as a supervisor would."""
        end = time.monotonic() + PATIENCE
        while self.ends() != self.topic_ends():
            assert time.monotonic() < end, f"the stream stands at {self.ends()} of {self.topic_ends()}"
            if not self.query.isActive:
                self.errors.append(self.sink.error or SparkFailed(str(self.query.exception())))
                self.start()
            time.sleep(0.1)

    def ends(self) -> dict[int, int]:
        """Per partition, up to where the table has it."""
        head = CommitLog(self.direct.home.records, "s", self.direct.uri).read().head
        return {partition: end for (_, partition), end in sorted(head.ends.items())}

    def topic_ends(self) -> dict[int, int]:
        """Per partition, what was put."""
        numbers = [partition for partition, _, _ in self.topic.records]
        return {partition: numbers.count(partition) for partition in range(self.topic.partitions)}

    def check(self) -> None:
        check_table(self.direct, self.topic)
        assert fsck(self.direct.uri, storage_options=self.direct.storage_options).findings == ()
        for error in self.errors:
            readable(error)


def readable(error: HeadgateError) -> None:
    """It says what, where and what next, and no credential."""
    shown = "".join(traceback.format_exception(error))
    assert error.table or error.detail.get("topic") or isinstance(error, SparkFailed), shown
    assert "Next:" in str(error)
    assert not any(secret in shown for secret in S3_SECRETS), "a credential is shown"


@pytest.fixture
def fired(
    spark: SparkSession,
    tmp_path: Path,
    bucket: str,
    s3_options: dict[str, str],
    s3_proxy: Proxy,
    kafka_behind_proxy: ProxiedKafka,
) -> Callable[..., Fired]:
    """Makes a table and its stream."""

    def make(path: str = "direct", **options: Any) -> Fired:
        broker, name = kafka_behind_proxy.broker, f"orders-{bucket}"
        broker.create_topic(name, 2)
        topic = Topic(broker.servers, name, 2)
        sharding = headgate.by_partition(key_is_partitioned=True)
        direct = create_table(
            f"s3://{bucket}/t", SCHEMA, primary_key="id", sharding=sharding, storage_options=s3_options
        )
        table = open_table(direct.uri, storage_options=s3_options_for(s3_proxy.endpoint))
        away = Topic(kafka_behind_proxy.servers, name, 2)
        stream = Stream(spark, table, [away], tmp_path / "checkpoint", path, max_offsets=200, options=options)
        return Fired(stream, topic, direct, {"s3": s3_proxy, "kafka": kafka_behind_proxy.proxy})

    return make


@pytest.mark.parametrize(
    "faults", [(RESET, LOST), pytest.param(FAULTS, marks=pytest.mark.deep)], ids=["broken and lost", "all"]
)
def test_a_stream_outlasts_faults_of_either_network_without_being_started_again(
    fired: Callable[..., Fired], faults: tuple[Fault, ...]
) -> None:
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    chance = random.Random(seed)
    plan = [(where, fault) for where in ("s3", "kafka") for fault in faults]
    chance.shuffle(plan)
    run = fired(enable_memtable=True, max_memtable_size=8 << 10)
    with replayable(seed, [(where, fault.name) for where, fault in plan]), run.running():
        run.topic.put_orders(200)
        run.catch_up()
        for where, fault in plan:
            with run.networks[where].under(fault):
                run.topic.put_orders(200, seed=chance.randrange(1 << 30))
                # A state that all faults reach does not exist: some let a batch through, some let nothing through.
                time.sleep(chance.uniform(0.5, 1.5) + fault.attributes.get("latency", 0) / 1000)
                if fault in (RESET, LOST):
                    assert run.ends() != run.topic_ends(), f"{fault.name} of {where} is not felt"
            run.catch_up()
    assert run.errors == []
    run.check()


@pytest.mark.deep
def test_a_store_that_stays_away_ends_the_query_with_a_readable_error_and_the_next_start_goes_on(
    fired: Callable[..., Fired],
) -> None:
    run = fired(store_patience=0.1)
    with run.running():
        run.topic.put_orders(100)
        run.catch_up()
        run.networks["s3"].cut()
        run.topic.put_orders(100, seed=2)
        end = time.monotonic() + PATIENCE
        while run.query.isActive:
            assert time.monotonic() < end, "the query goes on without a store"
            time.sleep(0.1)
        run.networks["s3"].mend()
        run.catch_up()
    (error,) = run.errors
    assert isinstance(error, Poisoned | Transient)
    assert error.table == run.direct.uri
    run.check()


@pytest.mark.deep
@pytest.mark.parametrize("path", ["direct", "arrow"])
@pytest.mark.parametrize("where", ["s3", "kafka"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_whole_run_under_a_fault_that_never_ends_is_slow_and_exact(
    fired: Callable[..., Fired], fault: Fault, where: str, path: str
) -> None:
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    run = fired(path, enable_memtable=True, max_memtable_size=8 << 10)
    # What breaks a connection would break all of them: a third of them is enough.
    worn = replace(fault, toxicity=0.3) if fault in (RESET, LOST) else fault
    with replayable(seed, (where, path, worn)), run.networks[where].under(worn), run.running():
        for number in range(3):
            run.topic.put_orders(100, seed=seed + number)
            run.catch_up()
    assert len(run.errors) < 3, run.errors
    run.check()


@pytest.mark.deep
@pytest.mark.parametrize("path", ["direct", "arrow"])
def test_forty_faults_of_both_networks_at_once(fired: Callable[..., Fired], path: str) -> None:
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    chance = random.Random(seed)
    run = fired(path, enable_memtable=True, max_memtable_size=8 << 10)
    with replayable(seed, path), run.running():
        for _ in range(20):
            faults = {where: varied(chance.choice(FAULTS), chance) for where in ("s3", "kafka")}
            for where, fault in faults.items():
                run.networks[where].begin(fault)
            run.topic.put_orders(150, seed=chance.randrange(1 << 30))
            time.sleep(chance.uniform(0.5, 8.0))
            for where, fault in faults.items():
                run.networks[where].end(fault)
            run.catch_up()
    assert len(run.errors) < 20, run.errors
    run.check()
