"""Opening a stream that has committed many batches, beside one that has committed few: start-up must not grow with age.

Both streams run as a driver runs them, without Spark: one entry per shard and batch, one commit record, a fold when the
log is long. Then each is opened in turns: claims, barriers, log, open record, re-read. What LIST shows of the log is
counted too; records go after the next fold, open records stay.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

import click
import pyarrow as pa

from benchmarks.report import output_option, show
from headgate.checkpoints.log.records import Batch, ShardPart
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects import open_store
from headgate.shards.config import WriterConfig
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TableHome
from headgate.shards.wal.entry import SourceRange, Tags
from headgate.shards.writer import ShardWriter

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
WAL_ONLY = WriterConfig(enable_memtable=False)
WANTED = 1.5
"""The old stream opens within so many times the young one's time."""


@click.command()
@click.option("--few", default=10, show_default=True, help="Batches of the young stream.")
@click.option("--many", default=10_000, show_default=True, help="Batches of the old one.")
@click.option("--shards", default=2, show_default=True)
@click.option("--rounds", default=15, show_default=True)
@click.option("--no-fold", is_flag=True, help="Never fold, to see what folding is for.")
@output_option
def main(few: int, many: int, shards: int, rounds: int, no_fold: bool, output: str) -> None:
    """Milliseconds to open, and what there is to read."""
    names = [f"partition:t:{number}" for number in range(shards)]
    with tempfile.TemporaryDirectory() as folder:
        homes = {count: _written(Path(folder) / str(count), count, names, fold=not no_fold) for count in (few, many)}
        os.sync()  # what writing has left to do is not the opening's
        took: dict[int, list[float]] = {count: [] for count in homes}
        for number in range(rounds + 1):
            for count, home in homes.items():
                start = time.perf_counter()
                StreamDriver.open(home, "s", f"q{number}", names)
                if number:
                    took[count].append(time.perf_counter() - start)
        lines: list[dict[str, Any]] = []
        for count, home in homes.items():
            home.store.reset_operations()
            StreamDriver.open(home, "s", "last", names)
            lines.append(
                {
                    "batches": count,
                    "open ms": median(took[count]) * 1000,
                    "fastest ms": min(took[count]) * 1000,
                    "times the young one": median(took[count]) / median(took[few]),
                    "log objects": sum(1 for _ in home.records.list("streams/")),
                    **{f"{verb}s": times for verb, times in sorted(home.store.operations().items())},
                }
            )
    ratio = median(took[many]) / median(took[few])
    show(f"Opening a stream of {shards} shards, medians of {rounds} rounds; wanted {WANTED}", lines, output)
    if output == "text":
        click.echo(f"{many:,} batches take {ratio:.2f} times as long as {few}.")


def _written(path: Path, batches: int, names: list[str], *, fold: bool) -> TableHome:
    home = TableHome(RowSchema.of(SCHEMA), store := open_store(str(path)), store, uuid.uuid4())
    driver = StreamDriver.open(home, "s", "q", names)
    rows = pa.record_batch({"id": [1, 2, 3], "note": ["waits at gate 7"] * 3}, schema=SCHEMA)
    for number in range(batches):
        parts = {}
        for name, claim in driver.plan(names).claims.items():
            attempt = uuid.uuid4().hex
            with ShardWriter.attach(claim, WAL_ONLY) as writer:
                put = writer.put(rows, Tags(attempt, ()))
            parts[name] = ShardPart(claim.shard.id, attempt, tuple(put.positions), put.rows, put.nbytes)
        source = SourceRange("t", 0, number, number + 1)
        driver.commit(Batch(query_id="q", batch_id=number, sources=(source,), shards=parts))
        if fold:
            driver.fold_if_due()
    return home


if __name__ == "__main__":
    main()
