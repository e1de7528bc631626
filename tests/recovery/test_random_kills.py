"""kill -9 at random times, of the driver, a Python worker, the JVM, the broker or the object store: in the end the
table is the topic.

Replay with HEADGATE_SEED=<seed>, which the failure names; the choices are the same, the machine's timing is not.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.dev.broker import LocalBroker
from headgate.table.fsck import fsck
from headgate.table.table import Table
from tests.support.network import seed_of_run
from tests.support.processes import PATIENCE, Driver
from tests.support.runs import SCHEMA, Topic, check_table, make_table
from tests.support.servers import LocalServer
from tests.support.services import S3_SECRETS, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

VICTIMS = ("driver", "worker", "jvm", "broker")
SHARDING = headgate.by_partition(key_is_partitioned=True)


class Run:
    """One table under fire."""

    def __init__(
        self, tmp_path: Path, broker: LocalBroker, chance: random.Random, table: Table, store: LocalServer | None
    ) -> None:
        self.chance = chance
        self.broker = broker
        self.store = store
        broker.create_topic("orders", 3)
        self.topic = Topic(broker.servers, "orders", 3)
        self.table = table
        self.told: dict[str, Any] = {
            "table": self.table.uri,
            "servers": broker.servers,
            "topic": "orders",
            "checkpoint": str(tmp_path / "checkpoint"),
            "log": str(tmp_path / "driver.log"),
            "max_offsets": 150,
        }
        self.drivers: list[Driver] = []

    def round(self, victim: str) -> None:
        """Data comes in, a driver works on it, and somebody is killed."""
        self.topic.put_orders(1500, seed=self.chance.randrange(1 << 30), keys=400)
        driver = self._running()
        driver.wait_for("batch")
        time.sleep(self.chance.random() * 1.5)
        if victim == "driver":
            driver.kill()
        elif victim == "worker":
            for one in self.chance.sample(workers := driver.workers(), min(1, len(workers))):
                one.kill()
        elif victim == "jvm":
            driver.jvm().kill()
            assert driver.process.wait(PATIENCE) > 0, f"it ends by itself, by an exit code: {driver.tail()}"
        elif victim == "store":
            assert self.store is not None
            self.store.kill()
            time.sleep(self.chance.random())
            self.store.start()
        else:
            self.broker.kill()
            time.sleep(self.chance.random())
            self.broker.start()

    def _running(self) -> Driver:
        """The driver that is at work, or a new one: by any way of reading, with MemTables or without."""
        if not self.drivers or self.drivers[-1].process.poll() is not None:
            path, memtable = self.chance.choice(["direct", "arrow"]), self.chance.random() < 0.5
            more = {"path": path, "memtable": memtable, "trigger": {"processingTime": "0 seconds"}}
            self.drivers.append(Driver({**self.told, **more}))
        return self.drivers[-1]

    def finish(self) -> None:
        """Whoever still runs is killed, and a last driver brings the table up to the topic."""
        self.end()
        # What hundreds of killed drivers left undone is more than a test waits for in batches as small as theirs.
        last = Driver({**self.told, "max_offsets": 20_000})
        self.drivers.append(last)
        assert last.finish() == 0, last.tail()
        check_table(self.table, self.topic)

    def end(self) -> None:
        for driver in self.drivers:
            driver.end_family()


def _rounds(
    tmp_path: Path, broker: LocalBroker, rounds: int, table: Table | None = None, store: LocalServer | None = None
) -> None:
    all_victims = (*VICTIMS, *(["store"] if store else []))
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    chance = random.Random(seed)
    victims = [*all_victims, *(chance.choice(all_victims) for _ in range(rounds - len(all_victims)))]
    chance.shuffle(victims)
    print(f"HEADGATE_SEED={seed}: {victims}")
    run = Run(tmp_path, broker, chance, table or make_table(tmp_path, SHARDING, "id"), store)
    try:
        for victim in victims:
            run.round(victim)
        run.finish()
    except BaseException as error:
        raise AssertionError(f"replay with HEADGATE_SEED={seed}; the drivers' log is {run.told['log']}") from error
    finally:
        run.end()


def test_killed_once_each_in_any_order_the_table_is_the_topic_row_by_row(
    tmp_path: Path, own_broker: LocalBroker
) -> None:
    _rounds(tmp_path, own_broker, len(VICTIMS))


@pytest.mark.deep
def test_killed_50_times_at_random_the_table_is_the_topic_row_by_row(tmp_path: Path, own_broker: LocalBroker) -> None:
    _rounds(tmp_path, own_broker, 50)


@pytest.mark.deep
@pytest.mark.s3
@pytest.mark.usefixtures("s3_environment")
def test_on_s3_killed_50_times_at_random_store_included_the_table_is_the_topic(
    tmp_path: Path, own_broker: LocalBroker, s3_server: S3Server, bucket: str
) -> None:
    table = headgate.create_table(f"s3://{bucket}/table", SCHEMA, primary_key="id", sharding=SHARDING)
    _rounds(tmp_path, own_broker, 50, table, s3_server.process)
    assert [str(one) for one in fsck(table.uri).findings] == []
    shown = (tmp_path / "driver.log").read_text(errors="replace")
    assert not any(secret in shown for secret in S3_SECRETS)
