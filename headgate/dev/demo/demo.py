"""The demo: orders flow from Kafka through Spark into a table, the driver is killed half-way, and nothing is lost.

Promises:
1. All parts are real: a Kafka broker, drivers in their own processes, SIGKILL of a driver and its JVM within a batch.
2. The table is compared with the produced records, row by row, and also with the topic. So are a search and a
   checkpoint, before and after the rows are compacted into the base.
3. However it ends, no process keeps running, and the broker's and Spark's files are deleted. The table stays unless the
   demo was interrupted. It only deletes folders that a demo has marked as its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headgate import clock, parallel
from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.checkpoints.snapshots.snapshot import visible_now
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.dev.broker import LocalBroker
from headgate.dev.demo.after import After, look_after
from headgate.dev.demo.orders import DDL, KEY, PARTITIONS, TEXT, TOPIC, WORD, Orders
from headgate.errors import HeadgateError, InvalidInput, NotFound
from headgate.shards.sharding import by_partition
from headgate.shards.wal.tailer import WalTailer
from headgate.streaming.decode.api import json as json_decoder
from headgate.streaming.kafka.source import source
from headgate.streaming.verify.compare import Difference, Prints, compare
from headgate.streaming.verify.verify import Verification, verify_table
from headgate.table.create import create_table
from headgate.table.ddl import arrow_schema
from headgate.table.status import batch_value, heads_of
from headgate.table.table import Table

BATCHES = 10
"""The records are split into about so many batches."""
KILL_AFTER = 5
"""The first driver is killed after so many batches."""
CORES = 2
MARK = ".headgate-demo"
"""Marks a directory whose table a demo has created."""
_COMMAND = "from headgate.cli import main; main(prog_name='headgate')"
_NEXT_BATCH = 10.0
"""Seconds to wait for the next batch before the driver is killed between batches instead."""
_PATIENCE = 120.0
"""After so many seconds without output, a driver counts as hanging."""


class DemoFailed(HeadgateError):
    """A step of the demo failed."""

    next_step = "run it once more; where it fails again, look at the table that it leaves, and at what the driver said"


class Steps(Protocol):
    """Shows the demo's progress."""

    def step(self, what: str, total: int | None = None) -> None:
        """The next step begins."""

    def moved(self, done: int) -> None:
        """So much of the step is done."""

    def done(self, result: str) -> None:
        """The step is done."""


@dataclass(frozen=True)
class Result:
    """The demo's result."""

    table: str
    batches: tuple[dict[str, Any], ...]
    records: int
    updates: int
    deletes: int
    rows: int
    difference: Difference
    """Between what was produced and what the table holds."""
    dead_letters: int
    dead_letters_expected: int
    verified: Verification
    """Between the topic and the table."""
    after: After
    """Plain Lance, search and a checkpoint."""
    killed_after_batch: int
    dead_entries: int
    """Entries that the killed driver wrote and never committed."""
    seconds_to_recover: float
    """From the kill to the first batch that its successor committed; a new Spark starts meanwhile."""
    rows_per_second: float
    """Over the batches, without the starts of Spark."""
    seconds: float

    @property
    def holds(self) -> bool:
        """True if every promise holds."""
        right = not self.difference and self.dead_letters == self.dead_letters_expected
        return right and self.verified.holds and self.after.holds


def run_demo(
    records: int, steps: Steps, directory: Path, watch: Callable[[Table, ConsumerConfig], None] | None = None
) -> Result:
    """Run it. The table is kept as `orders` in the directory, in place of an earlier demo's. `watch` gets it, and how
    to reach the topic, once it is made.

    1. start Kafka.  2. produce the orders.  3. stream them.  4. kill the driver within a batch.
    5. start again, to the end of the topic.  6. compare.  7. read with plain Lance, search, take a checkpoint.

    Raises InvalidInput for a directory with something else in it, DemoFailed, BrokerFailed, JarsMissing, and whatever a
    driver failed with.
    """
    began = clock.monotonic()
    with ExitStack() as stack:
        place = stack.enter_context(_marked(directory))
        scratch = stack.enter_context(_temporary())
        (scratch / "tmp").mkdir()
        steps.step("Starting Kafka")
        broker = stack.enter_context(LocalBroker(scratch / "kafka"))
        broker.create_topic(TOPIC, PARTITIONS)
        steps.done(f"Kafka runs on {broker.servers}")

        orders = Orders.make(records)
        steps.step("Producing orders", len(orders))
        orders.produce(broker.servers, steps.moved)
        steps.done(
            f"produced {len(orders):,} records: {orders.updates:,} updates, {orders.deletes:,} deletes, "
            f"{orders.bad:,} bad ones"
        )

        routing = by_partition(key_is_partitioned=True)
        table = create_table(
            str(place / "orders"), arrow_schema(DDL), primary_key=KEY, sharding=routing, full_text=TEXT
        )
        if watch is not None:
            watch(table, source(broker.servers, TOPIC, max_offsets_per_trigger=None).consumer)
        batches, killed_at = _until_killed(table, broker, scratch, steps, records)
        known = [batch_value(record) for record in heads_of(table)[0].recent.values()]
        dead_entries = _dead_entries(table)
        more, recovered_at = _to_the_end(table, broker, scratch, steps, records)

        steps.step("Comparing", None)
        expected = orders.expected(table.schema)
        difference, rows = _compared(table, expected)
        dead = sum(letters.num_rows for letters in read_dead_letters(table.home))
        verified = _verified(table, source(broker.servers, TOPIC, max_offsets_per_trigger=None).consumer)
        steps.done(f"compared {rows:,} rows with what was produced, and with the topic")
        steps.step("Reading with plain Lance, searching, taking a checkpoint", None)
        after = look_after(table, expected)
        steps.done(
            f"plain Lance sees {after.plain_rows:,} rows; searched for {WORD!r}: {after.hits:,} orders; "
            "took a checkpoint"
        )
        written = [batch for batch in (*batches, *more) if not batch["skipped"]]
        return Result(
            table=table.uri,
            batches=_all_batches(known, more),
            records=len(orders),
            updates=orders.updates,
            deletes=orders.deletes,
            rows=rows,
            difference=difference,
            dead_letters=dead,
            dead_letters_expected=orders.bad,
            verified=verified,
            after=after,
            killed_after_batch=batches[-1]["batch"],
            dead_entries=dead_entries,
            seconds_to_recover=recovered_at - killed_at,
            rows_per_second=sum(batch["rows"] for batch in written) / sum(batch["seconds"] for batch in written),
            seconds=clock.monotonic() - began,
        )


def _all_batches(known: list[dict[str, Any]], more: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """What the log had when the driver died, and what its successor reported: a clean stop folds the log."""
    later = [{key: value for key, value in one.items() if key not in ("seconds", "skipped")} for one in more]
    return tuple({one["batch"]: one for one in (*known, *later)}.values())


# -- streaming -----------------------------------------------------------------------


def _until_killed(
    table: Table, broker: LocalBroker, scratch: Path, steps: Steps, records: int
) -> tuple[list[dict[str, Any]], float]:
    """A driver that is killed within a batch. Its batches, and when it died."""
    steps.step("Streaming", records)
    batches: list[dict[str, Any]] = []
    with _Driver(table, broker.servers, scratch / "tmp", records) as driver:
        for batch in driver.batches():
            batches.append(batch)
            steps.moved(_reached(batches))
            if len(batches) == KILL_AFTER:
                _wait_for_an_entry_after(table, batch)
                driver.kill()
                break
        else:
            raise DemoFailed("The driver ended before it could be killed.", stderr=driver.last_words())
    steps.done(f"killed the driver (kill -9) after batch {batches[-1]['batch']}")
    return batches, clock.monotonic()


def _wait_for_an_entry_after(table: Table, batch: dict[str, Any]) -> None:
    """Wait until a task of the next batch has written an entry, whose rows are durable but not committed."""
    places = [(table.home.shard(name), positions[-1] + 1) for name, positions in batch["positions"].items()]
    until = clock.monotonic() + _NEXT_BATCH
    while clock.monotonic() < until:
        for shard, position in places:
            with suppress(NotFound):
                shard.wal.head(shard.wal_key(position))
                return
        clock.sleep(0.002)


def _to_the_end(
    table: Table, broker: LocalBroker, scratch: Path, steps: Steps, records: int
) -> tuple[list[dict[str, Any]], float]:
    """A second driver, which continues where the table stands. Its batches, and when the first was there."""
    steps.step("Recovering", records)
    batches: list[dict[str, Any]] = []
    recovered = 0.0
    with _Driver(table, broker.servers, scratch / "tmp", records, "--once") as driver:
        for batch in driver.batches():
            recovered = recovered or clock.monotonic()
            batches.append(batch)
            steps.moved(_reached(batches))
        code = driver.wait()
        if code != 0 or not batches:
            raise DemoFailed(f"The second driver ended with exit code {code}.", stderr=driver.last_words())
    steps.done(f"went on with batch {batches[0]['batch']}, and reached the end with batch {batches[-1]['batch']}")
    return batches, recovered


def _reached(batches: list[dict[str, Any]]) -> int:
    """Offsets that are in the table: partitions start at 0 here."""
    ends = {part["partition"]: part["until"] for batch in batches for part in batch["offsets"]}
    return sum(ends.values())


class _Driver:
    """`headgate ingest` in its own session, so that only it and its JVM are killed together."""

    def __init__(self, table: Table, servers: str, scratch: Path, records: int, *options: str) -> None:
        arguments = ["--servers", servers, "--topic", TOPIC, "--table", table.uri, "--output", "json"]
        arguments += ["--cores", str(CORES), "--max-offsets", str(max(1, -(-records // BATCHES)))]
        # What a killed Spark leaves behind goes with the directory.
        number, name = tempfile.mkstemp(prefix="driver-", suffix=".err", dir=scratch)
        self._errors = Path(name)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "ingest", *arguments, *options],
            stdout=subprocess.PIPE,
            stderr=number,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)},
        )
        os.close(number)

    def batches(self) -> Iterator[dict[str, Any]]:
        """Each batch as it is reported. A driver without output for too long is killed, which ends the batches."""
        assert self._process.stdout is not None
        while True:
            watchdog = parallel.timer(_PATIENCE, self.kill)
            watchdog.start()
            line = self._process.stdout.readline()
            watchdog.cancel()
            if not line:
                return
            yield json.loads(line)

    def kill(self) -> None:
        """SIGKILL of the driver and its JVM; Spark's workers end when they find it gone."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> int:
        """Its exit code."""
        return self._process.wait(_PATIENCE)

    def last_words(self) -> str:
        """The end of its stderr."""
        return self._errors.read_text(errors="replace")[-500:].strip()

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


# -- comparing -----------------------------------------------------------------------


def _compared(table: Table, produced: pa.Table) -> tuple[Difference, int]:
    """What the table holds with what was produced."""
    schema = table.home.schema
    expected = Prints.of(schema, produced.to_batches())
    found = Prints.of(schema, table.scan())
    return compare(expected, found, keyed=True), len(found)


def _verified(table: Table, consumer: ConsumerConfig) -> Verification:
    return verify_table(table, {TOPIC: consumer}, json_decoder(table.schema))


def _dead_entries(table: Table) -> int:
    """Entries with rows that no commit record lists."""
    visible = visible_now(table.home)
    return sum(
        not found.entry.header.barrier and not visible(info.id, found.position, found.entry.header.tags.attempt_id)
        for info in table.shards()
        for found in WalTailer(table.home.shard(info.id)).read(info.replay_after + 1)
    )


# -- where it is ---------------------------------------------------------------------


def clean(directory: Path) -> bool:
    """Delete what a demo has left in its directory, and nothing else. True if there was something.

    Raises InvalidInput for a table that no demo has created.
    """
    if not (directory / MARK).exists():
        if (directory / TOPIC).exists():
            raise InvalidInput(
                f"{directory / TOPIC} was not made by a demo.",
                advice="name another directory with --dir, or move it away; nothing was removed",
            )
        return False
    _remove(directory / TOPIC)
    (directory / MARK).unlink()
    with suppress(OSError):  # the directory has other files
        directory.rmdir()
    return True


@contextmanager
def _marked(directory: Path) -> Iterator[Path]:
    """The directory, marked as the demo's, without an earlier demo's table."""
    clean(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).write_text("Made by `headgate demo`; `headgate demo --clean` removes it.\n")
    try:
        yield directory
    except Exception:
        raise
    except BaseException:
        clean(directory)
        raise


@contextmanager
def _temporary() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="headgate-demo-"))
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    for _ in range(5):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            break
        # A worker of the killed Spark was still writing its last file.
        clock.sleep(0.5)
