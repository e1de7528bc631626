"""Durable puts into a WAL, beside a raw write and sync of the same bytes and beside native Lance's writer.

All candidates of one size take turns in one run, and every ratio is the median of the rounds' own ratios, so that
a slow moment of the machine meets them all.

What the ratios to native do not say by themselves: native never syncs, its rates are those of the page cache; it has
no WAL-only mode in Python, so its puts fill a MemTable and its close writes an SSTable; and it updates indexes at put,
while ours are built when a MemTable is flushed. So a candidate with a MemTable is timed until its rows are
in an SSTable with the same indexes, and WAL-only is compared with a native writer that keeps no index.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import click
import pyarrow as pa
from rich.console import Console
from rich.progress import Progress

from benchmarks.report import output_option, show_all
from benchmarks.rows import SCHEMA, event_rows, home_in
from headgate.shards import writer
from headgate.shards.config import WriterConfig
from headgate.shards.rows.schema import RowSchema
from headgate.shards.wal import appender, encoder
from headgate.shards.writer import ShardWriter

WAYS = 8
NATIVE = "native"
NATIVE_INDEXED = "native, indexes"
MEMTABLE = "MemTable, durable, flushed"
INDEXES: dict[str, tuple[str, Any]] = {"text_idx": ("text", "INVERTED"), "id_idx": ("id", "BTREE")}


@dataclass(frozen=True)
class Took:
    """Seconds of one candidate in one round: its puts, and the close after them."""

    puts: float
    close: float = 0.0
    entries: int = 0

    @property
    def whole(self) -> float:
        """Put + close."""
        return self.puts + self.close


Candidate = Callable[[Path, list[pa.RecordBatch]], Took]


@click.command()
@click.option("--memtable", type=click.Choice(["yes", "no", "both"]), default="no", show_default=True)
@click.option("--indexes", default="", metavar="NAME,…", help=f"Kept by the MemTables: {', '.join(INDEXES)}.")
@click.option("--sizes", default="100,1000,8000", show_default=True, metavar="KB,…", help="Bytes of one put.")
@click.option("--megabytes", default=16, show_default=True, help="Written by each candidate per round.")
@click.option("--seconds", default=25.0, show_default=True, help="Per size; at least three rounds are made.")
@click.option("--root", type=click.Path(file_okay=False), default=None, help="Directory on the disk to measure.")
@click.option("--profile", is_flag=True, help="Where the time of a durable WAL-only put goes, by phase.")
@output_option
def main(
    memtable: str,
    indexes: str,
    sizes: str,
    megabytes: int,
    seconds: float,
    root: str | None,
    profile: bool,
    output: str,
) -> None:
    """Rows and megabytes per second of puts; wanted: WAL-only at least 0.8 of raw and twice native."""
    names = tuple(name for name in indexes.split(",") if name)
    if unknown := set(names) - set(INDEXES):
        raise click.BadParameter(f"{sorted(unknown)} unknown; there are {list(INDEXES)}", param_hint="--indexes")
    if memtable == "no" and names:
        click.echo("WAL-only mode keeps no index: --indexes is ignored, none is kept.", err=True)
        names = ()
    if memtable == "both" and names:
        click.echo("WAL-only mode keeps no index: --indexes counts for the MemTable candidates only.", err=True)
    rows: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(dir=root) as folder,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        for kilobytes in map(int, sizes.split(",")):
            batch = event_rows(kilobytes * 1000)
            puts = max(4, megabytes * 1000 // kilobytes)
            candidates = chosen(memtable, names)
            shown = progress.add_task(f"{kilobytes} KB", total=None)
            rounds = measured(candidates, Path(folder), [batch] * puts, seconds, lambda: progress.advance(shown))  # noqa: B023
            progress.remove_task(shown)
            rows += told(kilobytes, batch.num_rows * puts, batch.nbytes * puts, puts, rounds)
            if profile:
                phases += profiled(kilobytes, Path(folder), [batch] * puts)
    title = f"WAL writes on {os.cpu_count()} cores; wanted of WAL-only, durable: / raw 0.8, / native 2"
    show_all([(title, rows), ("Where the time of a durable WAL-only put goes", phases)], output)


def chosen(memtable: str, indexes: tuple[str, ...]) -> dict[str, Candidate]:
    """The candidates, by name; `raw` and the native ones are what the others are measured against."""
    found: dict[str, Candidate] = {"raw": raw, "raw, name durable": durable_raw, NATIVE: Native(())}
    if indexes:
        found[NATIVE_INDEXED] = Native(indexes)
    if memtable in ("no", "both"):
        found["WAL-only, durable"] = WalOnly(durable=True)
        found[f"WAL-only, durable, {WAYS} putters"] = WalOnly(durable=True, ways=WAYS)
        found["WAL-only, pipeline + flush"] = WalOnly(durable=False)
    if memtable in ("yes", "both"):
        found[MEMTABLE] = WithMemTable(indexes)
    return found


def baseline(name: str, took: dict[str, Took]) -> Took:
    """The native writer that does the same work: with indexes only for a candidate that keeps them too."""
    return took[NATIVE_INDEXED if name in (MEMTABLE, NATIVE_INDEXED) and NATIVE_INDEXED in took else NATIVE]


# -- candidates ----------------------------------------------------------------


def raw(folder: Path, batches: list[pa.RecordBatch]) -> Took:
    """The floor: one new file per entry, opened under its own name, written, synced; its name is not durable."""
    body = entry_bytes(batches[0])
    folder.mkdir()
    began = time.perf_counter()
    for number in range(len(batches)):
        file = os.open(folder / f"{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        os.write(file, body)
        os.fsync(file)
        os.close(file)
    return Took(time.perf_counter() - began, entries=len(batches))


def durable_raw(folder: Path, batches: list[pa.RecordBatch]) -> Took:
    """The system calls that an entry needs to be atomic and safe from power loss, and nothing around them."""
    body = entry_bytes(batches[0])
    folder.mkdir()
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    began = time.perf_counter()
    for number in range(len(batches)):
        file = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o666, dir_fd=parent)
        os.write(file, body)
        os.fsync(file)
        os.link(f"/proc/self/fd/{file}", f"{number}", dst_dir_fd=parent, follow_symlinks=True)
        os.fsync(parent)
        os.close(file)
    took = time.perf_counter() - began
    os.close(parent)
    return Took(took, entries=len(batches))


def entry_bytes(batch: pa.RecordBatch) -> bytes:
    """The bytes that one put of the batch stores."""
    schema = RowSchema.of(SCHEMA)
    encoded = encoder.encode_entry(schema, [encoder.encode_rows(schema.stored_rows(batch))], epoch=1)
    return b"".join(map(bytes, encoded.buffers))


@dataclass(frozen=True)
class WalOnly:
    """Our writer without a MemTable."""

    durable: bool
    ways: int = 1

    def __call__(self, folder: Path, batches: list[pa.RecordBatch]) -> Took:
        config = WriterConfig(enable_memtable=False, durable_write=self.durable)
        return put_all(ShardWriter.open(home_in(folder), uuid.uuid4(), config), batches, self.ways)


@dataclass(frozen=True)
class WithMemTable:
    """Our writer with MemTables, flushed before close as native's close does: the same SSTable and indexes result."""

    indexes: tuple[str, ...]

    def __call__(self, folder: Path, batches: list[pa.RecordBatch]) -> Took:
        base_with(folder, self.indexes)
        config = WriterConfig(maintained_indexes=self.indexes)
        shard = ShardWriter.open(str(folder), uuid.uuid4(), config)
        began = time.perf_counter()
        for batch in batches:
            shard.put(batch)
        put = time.perf_counter()
        shard.flush_memtable()
        shard.close()
        return Took(put - began, time.perf_counter() - put, entries=shard.stats().pipeline.entries)


@dataclass(frozen=True)
class Native:
    """pylance's writer, as quick to write as it can be told to be."""

    indexes: tuple[str, ...]

    def __call__(self, folder: Path, batches: list[pa.RecordBatch]) -> Took:
        dataset = base_with(folder, self.indexes)
        dataset.initialize_mem_wal(unsharded=True, maintained_indexes=list(self.indexes))
        native = dataset.mem_wal_writer(str(uuid.uuid4()), durable_write=True, max_wal_flush_interval_ms=1)
        began = time.perf_counter()
        for batch in batches:
            native.put(batch)
        put = time.perf_counter()
        native.close()
        return Took(put - began, time.perf_counter() - put, entries=len(batches))


def put_all(shard: ShardWriter, batches: list[pa.RecordBatch], ways: int) -> Took:
    """All puts, durable at the end, then close."""
    began = time.perf_counter()
    if ways == 1:
        for batch in batches:
            shard.put(batch)
    else:
        with ThreadPoolExecutor(ways) as pool:
            list(pool.map(shard.put, batches))
    shard.flush()
    put = time.perf_counter()
    shard.close()
    return Took(put - began, time.perf_counter() - put, entries=shard.stats().pipeline.entries)


def base_with(folder: Path, indexes: tuple[str, ...]) -> Any:
    """An empty dataset with those indexes."""
    import lance

    dataset = lance.write_dataset(pa.Table.from_batches([], SCHEMA), str(folder))
    for name in indexes:
        column, kind = INDEXES[name]
        dataset.create_scalar_index(column, index_type=kind, name=name)
    return dataset


# -- rounds --------------------------------------------------------------------


def measured(
    candidates: dict[str, Candidate],
    folder: Path,
    batches: list[pa.RecordBatch],
    seconds: float,
    advance: Callable[[], None],
) -> list[dict[str, Took]]:
    """Rounds in which every candidate has its turn, one warm-up round left out, until the time is used up."""
    rounds: list[dict[str, Took]] = []
    names = list(candidates)
    began = time.monotonic()
    while len(rounds) < 4 or time.monotonic() - began < seconds:
        turn = len(rounds) % len(names)
        took = {}
        for name in names[turn:] + names[:turn]:
            place = folder / "round"
            took[name] = candidates[name](place, batches)
            shutil.rmtree(place)
            advance()
        rounds.append(took)
    return rounds[1:]


def told(
    kilobytes: int, rows: int, nbytes: int, puts: int, rounds: Sequence[dict[str, Took]]
) -> Iterator[dict[str, Any]]:
    """One line per candidate. Against raw the puts count; against native put + close, and the puts alone."""
    for name in rounds[0]:
        put = median(took[name].puts for took in rounds)
        yield {
            "put": f"{kilobytes:,} KB",
            "candidate": name,
            "rounds": len(rounds),
            "rows/s": rows / put,
            "MB/s": nbytes / put / 1e6,
            "ms per put": put / puts * 1000,
            "puts per entry": puts / max(1, median(took[name].entries for took in rounds)),
            "close ms": median(took[name].close for took in rounds) * 1000,
            "/ raw": median(took["raw"].puts / took[name].puts for took in rounds),
            "/ native": median(baseline(name, took).whole / took[name].whole for took in rounds),
            "/ native, puts": median(baseline(name, took).puts / took[name].puts for took in rounds),
        }


# -- where the time goes -------------------------------------------------------


def profiled(kilobytes: int, folder: Path, batches: list[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Phases of a durable WAL-only put of one putter. What no phase covers is hand-over between threads and Python."""
    spent: dict[str, float] = {}
    config = WriterConfig(enable_memtable=False)
    with ShardWriter.open(home_in(folder / "profile"), uuid.uuid4(), config) as shard:
        with timed(spent):
            began = time.perf_counter()
            for batch in batches:
                shard.put(batch)
            whole = time.perf_counter() - began
    shutil.rmtree(folder / "profile")
    spent["the rest: hand-over, Python"] = whole - sum(spent.values())
    for phase, seconds in spent.items():
        yield {
            "put": f"{kilobytes:,} KB",
            "phase": phase,
            "ms per put": seconds / len(batches) * 1000,
            "share": seconds / whole,
        }


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add up the time inside the parts that do not contain each other, on whichever thread they run."""

    def clocked(phase: Callable[..., str], call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                name = phase(*args)
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

        return run

    def named(name: str) -> Callable[..., str]:
        return lambda *_: name

    def synced(file: int) -> str:
        return "fsync folder" if os.path.isdir(f"/proc/self/fd/{file}") else "fsync file"

    patches = [
        mock.patch.object(RowSchema, "stored_rows", clocked(named("stored rows"), RowSchema.stored_rows)),
        mock.patch.object(writer, "encode_rows", clocked(named("encode"), encoder.encode_rows)),
        mock.patch.object(appender, "encode_entry", clocked(named("header + checksum"), encoder.encode_entry)),
        mock.patch.object(os, "open", clocked(named("open file, folder"), os.open)),
        mock.patch.object(os, "writev", clocked(named("write"), os.writev)),
        mock.patch.object(os, "fsync", clocked(synced, os.fsync)),
        mock.patch.object(os, "link", clocked(named("link"), os.link)),
        mock.patch.object(os, "close", clocked(named("close"), os.close)),
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


if __name__ == "__main__":
    main()
