"""A stream with its console, and a page of it open in another process, beside the same stream without.

`python -m benchmarks.console [--rows N] [--rounds N]`

The same topic, sinks and way of measuring as `benchmarks.stream`: interleaved rounds after a warm-up, and medians of
the rounds' own ratios. The page does what a browser does: it listens for events, and reads the stream's page again at
each, at most every 1.5 s. The CPU seconds count its process too.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil
import structlog

import headgate
from benchmarks.report import output_option, show_all
from benchmarks.stream import PARTITIONS, Clock, Measured, _line, _produce, _ratio, _rounds, _session
from benchmarks.stream_sinks import DIRECT, MEMTABLE, SINKS, Bench, Prepared, Sink, shards
from headgate.dev.broker import LocalBroker
from headgate.dev.ports import free_port

BATCH_ROWS = 50_000
WANTED = 0.95
"""Rows per second with the console and a page open, over those without."""

WITH, OPEN = "{}, console", "{}, console, page open"

VIEWER = """
import os, sys, time, urllib.request
url, page, parent = sys.argv[1], sys.argv[1] + "t/table/stream", os.getppid()
while os.getppid() == parent:
    try:
        with urllib.request.urlopen(url + "events", timeout=60) as events:
            for line in events:
                if line.startswith(b"event: changed"):
                    urllib.request.urlopen(page, timeout=60).read()
                    time.sleep(1.5)
    except OSError:
        time.sleep(0.2)
"""


class _Viewer:
    """A page in a process of its own, from the start of a stream until it has stored its rows."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", VIEWER, f"http://127.0.0.1:{port}/"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def shown(bench: Bench, *, memtable: bool, is_open: bool) -> Prepared:
    """headgate with its console."""
    port = free_port()
    prepared = shards(bench, headgate.by_partition(), memtable=memtable, ui_port=port)
    if not is_open:
        return prepared
    viewer = _Viewer(port)

    def end() -> None:
        viewer.close()
        prepared.end()

    return replace(prepared, end=end)


def sinks() -> dict[str, Sink]:
    """Each way of streaming without a console, with one, and with an open page."""
    found: dict[str, Sink] = {}
    for name, memtable in ((DIRECT, False), (MEMTABLE, True)):
        found[name] = SINKS[name]
        found[WITH.format(name)] = partial(shown, memtable=memtable, is_open=False)
        found[OPEN.format(name)] = partial(shown, memtable=memtable, is_open=True)
    return found


def ratios(runs: Mapping[str, list[Measured]]) -> list[dict[str, Any]]:
    """Rows per second over those without a console."""
    lines = []
    for name in (DIRECT, MEMTABLE):
        for form in (WITH, OPEN):
            seen = _ratio(runs, form.format(name), name)
            lines.append({"what": form.format(name), "seen": seen, "wanted": f"≥ {WANTED}", "ok": seen >= WANTED})
    return lines


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Rows in the topic.")
@click.option("--rounds", default=5, show_default=True, help="Measured rounds after the warm-up.")
@click.option("--cores", default=2, show_default=True)
@output_option
def main(rows: int, rounds: int, cores: int, output: str) -> None:
    """Rows per second and CPU of streams with and without a console, side by side."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    try:
        with LocalBroker(folder / "kafka") as broker:
            clock = Clock(frozenset(child.pid for child in psutil.Process().children(recursive=True)))
            broker.create_topic("orders", PARTITIONS)
            _produce(broker.servers, "orders", rows, PARTITIONS)
            with _session(cores) as spark:
                bench = Bench(spark, broker.servers, "orders", folder / "run", BATCH_ROWS)
                runs = _rounds(bench, sinks(), rows, rounds, clock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sizes = f"{rows:,} rows, {BATCH_ROWS:,} per batch, medians of {rounds} rounds"
    show_all(
        [
            (f"Streams with and without a console: {sizes}", [_line(name, taken) for name, taken in runs.items()]),
            ("Rows per second over those without a console", ratios(runs)),
        ],
        output,
    )


if __name__ == "__main__":
    main()
