"""Reading a WAL back, beside reading the same files raw and decoding them with pyarrow.

The candidates take turns in one run and the files are in the page cache for all, so what is compared is the work per
entry. The same is done on ten times the entries: the cost of one must not grow.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import pyarrow as pa
from rich.console import Console
from rich.progress import Progress

from benchmarks.report import output_option, show
from benchmarks.rows import event_rows, home_in
from headgate.shards.shard import Shard
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.encoder import encode_rows
from headgate.shards.wal.tailer import WalTailer

TIMES = 10


@click.command()
@click.option(
    "--entries", default=100, show_default=True, help=f"Of the shorter WAL; the longer has {TIMES} times more."
)
@click.option("--kilobytes", default=100, show_default=True, help="Of one entry.")
@click.option("--seconds", default=30.0, show_default=True, help="At least three rounds are made.")
@click.option("--root", type=click.Path(file_okay=False), default=None, help="Directory on the disk to measure.")
@output_option
def main(entries: int, kilobytes: int, seconds: float, root: str | None, output: str) -> None:
    """Megabytes per second of the tailer and of a raw loop, and the cost of one entry on ten times as many."""
    with (
        tempfile.TemporaryDirectory(dir=root) as folder,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        writing = progress.add_task("writing", total=entries * (1 + TIMES))
        wals = {
            count: written(Path(folder), count, kilobytes, lambda: progress.advance(writing))
            for count in (entries, entries * TIMES)
        }
        reading = progress.add_task("reading", total=None)
        rows = told(wals, measured(wals, seconds, lambda: progress.advance(reading)))
    show(f"Replay of {kilobytes} KB entries on {os.cpu_count()} cores; / raw: rate against the raw loop", rows, output)


def written(folder: Path, count: int, kilobytes: int, advance: Callable[[], None]) -> Shard:
    """A shard with that many entries."""
    appender = WalAppender.open(home_in(folder / str(count)).shard(uuid.uuid4()))
    chunk = encode_rows(appender.shard.home.schema.stored_rows(event_rows(kilobytes * 1000)))
    for _ in range(count):
        appender.append([chunk])
        advance()
    return appender.shard


def tailed(shard: Shard, count: int) -> int:
    """Rows by the tailer, checksums checked."""
    return sum(found.entry.rows for found in WalTailer(shard).read(1))


def raw(shard: Shard, count: int) -> int:
    """Rows by a loop that knows the names, reads each file and decodes it; nothing is checked."""
    root = Path(shard.wal.uri)
    return sum(
        pa.ipc.open_stream((root / shard.wal_key(position)).read_bytes()).read_all().num_rows
        for position in range(1, count + 1)
    )


READERS: dict[str, Callable[[Shard, int], int]] = {"tailer": tailed, "raw read + decode": raw}


def measured(wals: dict[int, Shard], seconds: float, advance: Callable[[], None]) -> list[dict[tuple[int, str], float]]:
    """Seconds of each reader on each WAL, per round; the first round warms up and is left out."""
    rounds: list[dict[tuple[int, str], float]] = []
    turns = [(count, name) for count in wals for name in READERS]
    expected = {count: READERS["raw read + decode"](shard, count) for count, shard in wals.items()}
    began = time.monotonic()
    while len(rounds) < 4 or time.monotonic() - began < seconds:
        first = len(rounds) % len(turns)
        took = {}
        for count, name in turns[first:] + turns[:first]:
            start = time.perf_counter()
            found = READERS[name](wals[count], count)
            took[count, name] = time.perf_counter() - start
            assert found == expected[count], f"{name} read {found} rows of {expected[count]}"
            advance()
        rounds.append(took)
    return rounds[1:]


def told(wals: dict[int, Shard], rounds: list[dict[tuple[int, str], float]]) -> list[dict[str, Any]]:
    """One line per WAL and reader."""
    few = min(wals)
    rows = []
    for count, shard in wals.items():
        nbytes = shard.wal.head(shard.wal_key(1)).size * count
        for name in READERS:
            took = median(one[count, name] for one in rounds)
            rows.append(
                {
                    "entries": count,
                    "reader": name,
                    "rounds": len(rounds),
                    "MB/s": nbytes / took / 1e6,
                    "ms per entry": took / count * 1000,
                    "/ raw": median(one[count, "raw read + decode"] / one[count, name] for one in rounds),
                    f"cost per entry / that of {few}": median(
                        one[count, name] / count / (one[few, name] / few) for one in rounds
                    ),
                }
            )
    return rows


if __name__ == "__main__":
    main()
