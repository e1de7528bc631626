"""What a soak runs on: a broker, an S3 server, toxiproxy before both, `headgate ingest`, and who starts it again."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import headgate
from headgate.dev.broker import LocalBroker
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.support.network import NOWHERE, Proxy, Toxiproxy
from tests.support.processes import Child
from tests.support.runs import SCHEMA
from tests.support.servers import s3_server
from tests.support.services import S3_SECRETS, create_bucket, s3_options_for

ROOT = Path(__file__).resolve().parents[2]
TOPIC, STREAM, BUCKET, PARTITIONS = "orders", "orders", "lake", 3
SPARK_DEFAULTS = {
    "spark.driver.memory": "768m",
    "spark.headgate.maxMemtableSize": "64k",
    "spark.headgate.maxMemtableAge": "10s",
    "spark.headgate.compactSstables": "3",
    "spark.headgate.checkpointInterval": "15s",
}
"""Maintenance that a stream has in hours comes within seconds here."""

EXPECTED_ENDS = ("Fenced", "Poisoned", "Transient", "SparkFailed", "Expired")
"""What may end `headgate ingest` under fire. Anything else is a failure of the soak."""


@dataclass
class Batches:
    """What all starts of `headgate ingest` have told."""

    seconds: list[float] = field(default_factory=list)
    rows: int = 0
    skipped: int = 0
    last: float = field(default_factory=time.monotonic)


class Ingest(Child):
    """One start of the command."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str], batches: Batches) -> None:
        self._batches = batches
        self.started = time.monotonic()
        super().__init__(command, log, environment)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):
                told = json.loads(line)
                self._batches.seconds.append(told["seconds"])
                self._batches.rows += told["rows"]
                self._batches.skipped += told["skipped"]
                self._batches.last = time.monotonic()

    def error(self) -> str:
        """The class of the error that it ended with, as its last line on stderr says; else how it ended."""
        code = self.process.returncode
        if code is None or code < 0:
            return f"signal {-(code or 0)}"
        for line in reversed(self.log.read_text(errors="replace").splitlines()):
            with suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict) and "exit_code" in told:
                    return str(told["error"])
        return f"exit code {code}"


class World:
    """All parts, and the stream that must survive what is done to them. `close` ends every process."""

    def __init__(self, folder: Path, keyed: bool) -> None:
        self.folder, self.keyed = folder, keyed
        for name in ("tmp", "conf", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        lines = [f"{name} {value}\n" for name, value in SPARK_DEFAULTS.items()]
        (folder / "conf" / "spark-defaults.conf").write_text("".join(lines))
        self.lock = threading.RLock()
        """Who starts or ends parts."""
        self.batches = Batches()
        self.ends: Counter[str] = Counter()
        """How starts of `headgate ingest` ended, by the class of the error."""
        self.starts = 0
        self.ingest: Ingest | None = None
        self.family: list[Ingest] = []
        self.toxiproxy = Toxiproxy(folder / "logs")
        self.toxiproxy.start()
        self.s3 = s3_server("versitygw", folder / "s3", S3_SECRETS).start()
        self.networks: dict[str, Proxy] = {
            "s3": self.toxiproxy.proxy("s3", f"127.0.0.1:{self.s3.port}"),
            "kafka": self.toxiproxy.proxy("kafka", NOWHERE),
        }
        self.broker = LocalBroker(folder / "kafka", proxy_port=self.networks["kafka"].port).start()
        self.networks["kafka"].lead_to(f"127.0.0.1:{self.broker.behind}")
        create_bucket(self.s3.endpoint, BUCKET)
        self.broker.create_topic(TOPIC, PARTITIONS)
        self.options = s3_options_for(self.s3.endpoint)
        self.fired_options = s3_options_for(self.networks["s3"].endpoint)
        sharding = headgate.by_partition(key_is_partitioned=keyed)
        self.uri = f"s3://{BUCKET}/orders"
        self.table: Table = create_table(
            self.uri, SCHEMA, primary_key="id" if keyed else None, sharding=sharding, storage_options=self.options
        )

    def fired_table(self) -> Table:
        """The table by the way that breaks."""
        return open_table(self.uri, storage_options=self.fired_options)

    # -- the stream ------------------------------------------------------------------

    def start_ingest(self) -> Ingest:
        """One more start of the command; it takes the stream over."""
        self.starts += 1
        # Each start by another way of reading.
        path = "--direct" if self.starts % 3 else "--no-direct"
        command = [
            *(sys.executable, "-c", "from headgate.cli import main; main()", "ingest"),
            *("--servers", f"127.0.0.1:{self.networks['kafka'].port}", "--topic", TOPIC, "--stream", STREAM),
            *("--table", self.uri, "--spark-checkpoint", str(self.folder / "checkpoint"), path),
            *("--max-offsets", "3000", "--cores", "2", "--output", "json"),
        ]
        key, secret = S3_SECRETS
        environment = {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT": self.networks["s3"].endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        log = self.folder / "logs" / f"ingest-{self.starts}.log"
        started = Ingest(command, log, environment, self.batches)
        self.family.append(started)
        return started

    def supervise(self) -> None:
        """What has died is started again."""
        with self.lock:
            if self.ingest is None or self.ingest.process.poll() is not None:
                if self.ingest is not None:
                    self.ends[self.ingest.error()] += 1
                self.ingest = self.start_ingest()

    def unexpected_ends(self, kills: int) -> list[str]:
        """Ends that no fire explains, with what those starts printed last: other signals than ours, and more of them
        than drivers were killed.
        """
        killed = f"signal {int(signal.SIGKILL)}"
        explained = (*EXPECTED_ENDS, *([killed] if self.ends[killed] <= kills else []))
        over = [one for one in self.family if one.process.poll() is not None]
        unknown = [(one, ended) for one in over if (ended := one.error()) in self.ends and ended not in explained]
        return [f"headgate ingest ended by {ended} ({one.log.name}): {one.tail()}" for one, ended in unknown]

    def wait_for_batch(self, seconds: float) -> bool:
        """Until a batch is committed from now on. False: not so soon."""
        before = time.monotonic()
        while self.batches.last <= before:
            if time.monotonic() > before + seconds:
                return False
            self.supervise()
            time.sleep(0.1)
        return True

    def stop_ingest(self) -> int:
        """A clean end: SIGTERM; its exit code."""
        assert self.ingest is not None
        self.ingest.process.send_signal(signal.SIGTERM)
        return self.ingest.process.wait(180)

    # -- parts as processes -------------------------------------------------------------

    def processes(self) -> dict[str, list[psutil.Process]]:
        """By part."""
        found: dict[str, list[psutil.Process]] = {"toxiproxy": _children(self.toxiproxy.server.holder)}
        found["s3"] = _children(self.s3.holder)
        found["broker"] = _process(self.broker.pid)
        if (ingest := self.ingest) is not None and ingest.process.poll() is None:
            found["driver"] = _process(ingest.process.pid)
            with suppress(StopIteration, psutil.Error):
                found["jvm"] = [ingest.jvm()]
            found["workers"] = ingest.workers()
        return found

    def close(self) -> None:
        """End every process."""
        for one in self.family:
            with suppress(Exception):
                one.end_family()
        for end in (self.broker.kill, self.s3.kill, self.toxiproxy.kill):
            with suppress(Exception):
                end()


def _process(pid: int | None) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [] if pid is None else [psutil.Process(pid)]
    return []


def _children(pid: int | None) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [] if pid is None else psutil.Process(pid).children()
    return []


def every(seconds: float, stop: threading.Event, work: Callable[[], Any]) -> None:
    """The work again and again until it is to stop."""
    while not stop.wait(seconds):
        work()
