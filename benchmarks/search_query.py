"""Full-text queries beside native pylance: on the base alone, then with SSTables and a tail of fresh rows.

On the base alone both answer the same queries in turns. "one instant" searches a snapshot that is held, as native
searches an open dataset; "table.search" reads the table's state anew each time, as native does when it opens the
dataset for every query. With fresh rows the measure is native over one dataset of all visible rows with one index: what
a search costs once everything is compacted. Both answer the same queries in turns.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

os.environ.setdefault("LANCE_LOG", "error,lance::index=off")  # Lance complains about its own MemWAL index at each open.

import click
import lance
import numpy as np
import pyarrow as pa
from lance.query import MatchQuery

from benchmarks.report import output_option, show
from headgate.connectors.lance.datasets import text_indexes
from headgate.shards.config import WriterConfig
from headgate.table.create import create_table
from headgate.table.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
LETTERS = 7
"""Bytes of a word, the blank after it included."""
CHUNK = 100_000
NEW_ROWS, ROUNDS = 10_000, 5
"""Put before each of so many searches that find them."""


class Notes:
    """Texts of words w00000 w00001 …, of which low numbers are frequent (Zipf)."""

    def __init__(self, vocabulary: int, words: int) -> None:
        self._random = np.random.default_rng(7)
        weights = 1 / np.arange(1, vocabulary + 1)
        self._ends = np.cumsum(weights / weights.sum())
        self._words = words
        spelled = "".join(f"w{number:05d} " for number in range(vocabulary)).encode()
        self._spelled = np.frombuffer(spelled, np.uint8).reshape(vocabulary, LETTERS)

    def numbers(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.minimum(np.searchsorted(self._ends, self._random.random(count)), len(self._ends) - 1)

    def rows(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
        count, width = len(ids), self._words * LETTERS
        letters = self._spelled[self.numbers(count * self._words)].reshape(-1)
        offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
        return pa.table([pa.array(ids), pa.Array.from_buffers(pa.string(), count, buffers)], schema=SCHEMA)

    def queries(self, count: int) -> list[str]:
        sizes = self._random.integers(1, 4, count)
        return [" ".join(f"w{number:05d}" for number in self.numbers(size)) for size in sizes]


@click.command()
@click.option("--documents", default=50_000, show_default=True, help="Rows of the base.")
@click.option("--words", default=20, show_default=True, help="Words of a document.")
@click.option("--vocabulary", default=50_000, show_default=True, help="Different words, at most 100,000.")
@click.option("--queries", default=200, show_default=True, help="Of one to three words, by the same frequencies.")
@click.option("--sstables", default=4, show_default=True, help="SSTables; half of their rows are newer versions.")
@click.option("--sstable-rows", default=10_000, show_default=True)
@click.option("--tail-mb", default=4, show_default=True, help="Megabytes of fresh rows in the WAL.")
@output_option
def main(
    documents: int,
    words: int,
    vocabulary: int,
    queries: int,
    sstables: int,
    sstable_rows: int,
    tail_mb: int,
    output: str,
) -> None:
    """Milliseconds a query, p50 and p95, and as a ratio to native's."""
    notes = Notes(vocabulary, words)
    with tempfile.TemporaryDirectory() as folder:
        table = create_table(str(Path(folder) / "table"), SCHEMA, primary_key="id", full_text="note")
        for start in range(0, documents, CHUNK):
            ids = np.arange(start, min(start + CHUNK, documents))
            lance.write_dataset(notes.rows(ids).cast(table.schema), table.uri, mode="append")
        table.build_index("note")
        texts = notes.queries(queries)
        lines = _base_alone(table, texts)
        _make_fresh(table, notes, documents, sstables, sstable_rows, tail_mb << 20)
        whole = _one_dataset(table, str(Path(folder) / "whole"))
        fresh = f"base + {sstables} SSTables + {tail_mb} MB tail: {whole.count_rows():,}"
        lines += _with_fresh(table, whole, notes, texts, fresh)
    show(f"{documents} documents of {words} words, {queries} queries, k = 10", lines, output)


Ways: TypeAlias = list[tuple[str, Callable[[str], pa.Table]]]


def _ways(dataset: Any, table: Table, searcher: Any) -> Ways:
    return [
        ("native, open dataset", lambda text: _native(dataset, text)),
        ("headgate, one instant", lambda text: searcher.search(text, "note")),
        ("native, opened each time", lambda text: _native(lance.dataset(dataset.uri), text)),
        ("headgate, table.search", lambda text: table.search(text, column="note")),
    ]


def _base_alone(table: Table, texts: list[str]) -> list[dict[str, Any]]:
    dataset, searcher = lance.dataset(table.uri), table.searcher()
    ways = _ways(dataset, table, searcher)
    return _in_turns("base", ways, texts)


def _in_turns(rows: str, ways: Ways, texts: list[str]) -> list[dict[str, Any]]:
    """After one round to warm up. Ways in pairs: one of native's, then ours."""
    took: dict[str, list[float]] = {name: [] for name, _ in ways}
    for text in texts:  # Both cache the posting lists of words.
        for _, search in ways[:2]:
            search(text)
    for text in texts:
        for name, search in ways:
            took[name] += _timed(search, [text])
    lines = []
    for place, (name, seconds) in enumerate(took.items()):
        peer = took[ways[place // 2 * 2][0]]
        lines.append({"rows": rows, "search": name, **_line(seconds), "p50 / native": _p50(seconds) / _p50(peer)})
    return lines


def _make_fresh(table: Table, notes: Notes, documents: int, sstables: int, rows: int, tail: int) -> None:
    chance = np.random.default_rng(11)
    last = documents
    with table.writer("single", WriterConfig(max_memtable_rows=rows + 1)) as writer:
        for _ in range(sstables):
            older = chance.choice(documents, min(rows // 2, documents), replace=False)
            writer.put(notes.rows(np.concatenate([older, np.arange(last, last + rows - len(older))])))
            writer.flush_memtable()
            last += rows
    # WAL-only: what is put stays in the WAL, however much it is.
    with table.writer("single", WriterConfig(enable_memtable=False)) as writer:
        put = 0
        while put < tail:
            batch = notes.rows(np.arange(last, last + 5_000))
            writer.put(batch)
            put += batch.nbytes
            last += 5_000


def _one_dataset(table: Table, uri: str) -> Any:
    (built,) = text_indexes(lance.dataset(table.uri))
    dataset = lance.write_dataset(table.scan(), uri)
    dataset.create_scalar_index("note", "INVERTED", **built.parameters)
    return lance.dataset(uri)


def _with_fresh(table: Table, whole: Any, notes: Notes, texts: list[str], fresh: str) -> list[dict[str, Any]]:
    (first,) = _timed(lambda text: table.search(text, column="note"), texts[:1])
    searcher = table.searcher()
    lines = _in_turns(fresh, _ways(whole, table, searcher), texts)
    after = []
    for number in range(ROUNDS):
        with table.writer("single", WriterConfig(enable_memtable=False)) as writer:
            writer.put(notes.rows(np.arange(NEW_ROWS) + whole.count_rows() * 2 + number * NEW_ROWS))
        after += _timed(lambda text: table.search(text, column="note"), texts[:1])
    return [
        {"rows": fresh, "search": "headgate, the first, cold", "p50 ms": first * 1e3},
        *lines,
        {"rows": fresh, "search": f"headgate, the first after {NEW_ROWS:,} new rows", "p50 ms": _p50(after) * 1e3},
    ]


def _native(dataset: Any, text: str) -> pa.Table:
    query = MatchQuery(text, "note")
    return dataset.scanner(columns=["id", "note", "_score"], full_text_query=query, limit=10).to_table()


def _timed(search: Callable[[str], pa.Table], texts: list[str]) -> list[float]:
    took = []
    for text in texts:
        start = time.perf_counter()
        search(text)
        took.append(time.perf_counter() - start)
    return took


def _line(seconds: list[float]) -> dict[str, float]:
    return {"p50 ms": _p50(seconds) * 1e3, "p95 ms": float(np.percentile(seconds, 95)) * 1e3}


def _p50(seconds: list[float]) -> float:
    return float(np.percentile(seconds, 50))


if __name__ == "__main__":
    main()
