"""A soak: a stream from Kafka by Spark into a table on S3, while every part of it is killed, paused and cut off.

Beside it the table is read, cloned, checkpointed and collected. In the end the table must be the topic, row by row,
dead letters included; fsck must be clean; and what every reader saw was a prefix of the topic.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import lance

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.connectors.kafka.reader import offsets
from headgate.streaming.verify.verify import verify_table
from headgate.table.fsck import fsck
from tests.soak.soak_beside import Beside
from tests.soak.soak_fire import Fire
from tests.soak.soak_report import Report, percentiles
from tests.soak.soak_topic import Cursor, Topic, difference, produce, shown
from tests.soak.soak_watch import Watch
from tests.soak.soak_world import STREAM, TOPIC, World
from tests.support.services import S3_SECRETS

PATIENCE = 300.0
"""Seconds until a stream that nothing holds up must have committed a batch, and until it must be at the topic's end."""
CALM_SHARE, CALM_FROM = 0.4, 240.0
"""The last part of a soak of some minutes spares the driver, so that its memory can be measured over one life."""
LEAST_BLOWS = 5
"""However slow the machine is."""
MIN_AGE_SHARE, MIN_AGE = 1 / 6, 40.0
"""Garbage is younger than this share of the run, and at least so many seconds, when it is collected. Jobs give up after
half of it (R12). The other half is for what was on its way then: no blow lasts longer than 8 s, and few follow each
other at once. An unpinned read that takes longer must be told so.
"""

Tell = Callable[[str], None]


class Soak:
    """One run. Use `soak`."""

    def __init__(self, folder: Path, seconds: float, seed: int, keyed: bool, rate: int, tell: Tell) -> None:
        self.folder, self.seconds, self.seed, self.rate, self.tell = folder, seconds, seed, rate, tell
        self.chance = random.Random(seed)
        self.min_age = max(MIN_AGE, seconds * MIN_AGE_SHARE)
        self.world = World(folder, keyed)
        self.topic = Topic(self.world.broker.servers, keyed)
        self.watch = Watch(self.world)
        self.fire = Fire(self.world, seed, zombies=seconds >= CALM_FROM)
        self.beside = Beside(self.world, self.topic, seed, timedelta(seconds=self.min_age))
        self.measured = seconds >= CALM_FROM
        """Whether the run is long enough to say that memory does not grow."""
        self.failures: list[str] = []
        self._stops: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}

    def run(self) -> Report:
        """Everything starts; fire; the fire is out, and the stream catches up by itself; a clean stop; compare."""
        servers = self.world.broker.servers
        self._thread("produce", lambda stop: produce(servers, self.rate, random.Random(self.seed), stop))
        self._thread("topic", self.topic.read)
        self._thread("supervise", self._supervise)
        self._thread("watch", self.watch.run)
        if not self.world.wait_for_batch(PATIENCE):
            self.failures.append("the stream never began")
        beside = threading.Event()
        others = self.beside.run(beside)
        took = self._under_fire()
        self._end("produce")
        beside.set()
        for thread in others:
            thread.join(180)
            if thread.is_alive():
                self.failures.append(f"{thread.name} hangs")
        self._catch_up()
        self._end("supervise")
        if (code := self.world.stop_ingest()) != 0:
            self.failures.append(f"a clean stop ended with exit code {code}")
        self._end("watch")
        self._collect_all()
        ends = self._topic_ends()
        try:
            self.topic.wait_for(ends)
        except AssertionError as error:
            self.failures.append(str(error))
        self._end("topic")
        self._look_for_credentials()
        return self._compared(took, ends)

    def close(self) -> None:
        """End every thread and process."""
        for name in list(self._threads):
            with suppress(Exception):
                self._end(name)
        self.world.close()

    def _under_fire(self) -> float:
        began = time.monotonic()
        while (spent := time.monotonic() - began) < self.seconds or self._too_little(spent):
            calm = self.measured and spent > self.seconds * (1 - CALM_SHARE)
            # Mostly the stream is let come to work again before the next blow; sometimes it is hit while it rises.
            if self.chance.random() < 0.8 and not self.world.wait_for_batch(PATIENCE):
                self.failures.append(f"no batch was committed for {PATIENCE:.0f} s while nothing was broken")
            time.sleep(self.chance.uniform(0.2, 3.0))
            self.tell(f"{spent:5.0f} s  {self.fire.once(calm=calm)}")
        return time.monotonic() - began

    def _too_little(self, spent: float) -> bool:
        """Fire goes on where a slow machine had too few blows, and where no process of ours lived long enough to say
        whether it grows: a fault of the network may have ended one that was spared.
        """
        if self.fire.counts.total() < LEAST_BLOWS:
            return True
        return self.measured and spent < self.seconds + PATIENCE and bool(self.watch.unmeasured())

    def _supervise(self, stop: threading.Event) -> None:
        while not stop.wait(0.5):
            self.world.supervise()

    def _catch_up(self) -> None:
        end = time.monotonic() + PATIENCE
        while self._ends() != (wanted := self._topic_ends()):
            if time.monotonic() > end:
                self.failures.append(f"the stream stopped at {self._ends()} of {wanted}")
                return
            time.sleep(0.5)

    def _ends(self) -> dict[int, int]:
        head = CommitLog(self.world.table.home.records, STREAM, self.world.uri).read().head
        return {partition: end for (_, partition), end in sorted(head.ends.items())}

    def _topic_ends(self) -> dict[int, int]:
        source = headgate.kafka.source(self.world.broker.servers, TOPIC)
        return {partition: last for partition, (_, last) in sorted(offsets(source.consumer, TOPIC).items())}

    # -- the end -----------------------------------------------------------------------

    def _collect_all(self) -> None:
        """When nothing runs, whatever its age. What is compared then is a table without its garbage."""
        gone = self.world.table.collect_garbage(min_age=timedelta(0), apply=True)
        self.beside.counts["objects collected in the end"] = len(gone.found)
        if not gone.found:
            self.failures.append("there was nothing to collect in the end")

    def _look_for_credentials(self) -> None:
        """In all that was written: objects, logs, Spark's checkpoint, what the broker keeps."""
        secrets = [one.encode() for one in S3_SECRETS]
        for path in filter(Path.is_file, self.folder.rglob("*")):
            with suppress(OSError):
                # A broker's file may go meanwhile.
                if any(secret in path.read_bytes() for secret in secrets):
                    self.failures.append(f"{path} has a credential in it")

    def _nothing_was_done(self) -> list[str]:
        """What a run that was long enough must have seen."""
        beside = ("read", "checkpoint", "clone", "collection", "objects collected", "rows merged into the base")
        wanted = [(what, self.beside.counts[what]) for what in beside]
        return [f"nothing under fire: {what}" for what, count in wanted if self.measured and not count]

    def _compared(self, took: float, ends: dict[int, int]) -> Report:
        table, topic = self.world.table, self.topic
        base = lance.dataset(self.world.uri, storage_options=self.world.options).count_rows()
        self.beside.counts["rows merged into the base"] = base
        found = shown(table.scan().read_all())
        off = difference(Cursor(topic).at(ends), found)
        dead: Counter[tuple[int, int]] = Counter()
        for letters in read_dead_letters(table.home):
            dead.update(zip(letters["partition"].to_pylist(), letters["offset"].to_pylist(), strict=True))
        failures = [*self.failures, *self.beside.failures, *self.fire.late, *self._nothing_was_done()]
        if dead != topic.bad(ends):
            failures.append(f"dead letters: {dead - topic.bad(ends)} too many, {topic.bad(ends) - dead} lost")
        source = headgate.kafka.source(self.world.broker.servers, TOPIC)
        verified = verify_table(table, {TOPIC: source.consumer}, headgate.decode.json(table.schema))
        if not verified.holds:
            failures.append(f"headgate verify: {verified}")
        failures += self.world.unexpected_ends(kills=self.fire.counts["kill driver"])
        growths = self.watch.growths()
        if self.measured and (missing := self.watch.unmeasured()):
            failures.append(f"no process lived long enough to say whether it grows: {', '.join(sorted(missing))}")
        return Report(
            seed=self.seed,
            table="with a key, upserts and deletes" if self.world.keyed else "without a key, every row counts",
            seconds=took,
            fire=dict(self.fire.counts),
            beside=dict(self.beside.counts),
            starts=self.world.starts,
            ends=dict(self.world.ends),
            batches=len(self.world.batches.seconds),
            batch_seconds=percentiles(self.world.batches.seconds),
            records=sum(ends.values()),
            rows=len(found),
            dead_letters=dead.total(),
            fsck=[f"{one.code}" for one in fsck(self.world.uri, storage_options=self.world.options).findings],
            growths=growths,
            failures=failures,
            **off,
        )

    # -- threads -------------------------------------------------------------------------

    def _thread(self, name: str, work: Callable[[threading.Event], None]) -> None:
        stop = self._stops[name] = threading.Event()

        def run() -> None:
            try:
                work(stop)
            except BaseException as error:
                self.failures.append(f"{name}: {error!r}")

        self._threads[name] = threading.Thread(target=run, name=name, daemon=True)
        self._threads[name].start()

    def _end(self, name: str) -> None:
        self._stops.pop(name).set()
        thread = self._threads.pop(name)
        thread.join(180)
        if thread.is_alive():
            self.failures.append(f"{name} hangs")


def soak(
    folder: Path,
    seconds: float,
    seed: int,
    *,
    keyed: bool | None = None,
    rate: int = 400,
    tell: Tell = lambda line: None,
) -> Report:
    """Run one, leave its report in the folder, and return it. `keyed` None: the seed decides.

    The random kind of table, what is done to the parts and how long it lasts all come from the seed.
    """
    kind = seed % 2 == 0 if keyed is None else keyed
    running = Soak(folder, seconds, seed, kind, rate, tell)
    try:
        report = running.run()
        report.write(folder, running.watch.samples)
        return report
    finally:
        running.close()
