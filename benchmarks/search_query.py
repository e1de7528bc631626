"""Full-text queries beside native pylance: on the base alone, then with SSTables and a tail of fresh rows.

On the base alone both answer the same queries in turns. "one instant" searches a snapshot that is held, as native
searches an open dataset; "table.search" reads the table's state anew each time, as native does when it opens the
dataset for every query. With fresh rows there is no native counterpart: native over the base alone is the measure.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import lance
import numpy as np
import pyarrow as pa
from lance.query import MatchQuery

from benchmarks.report import output_option, show
from headgate.shards.config import WriterConfig
from headgate.table.create import create_table
from headgate.table.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
LETTERS = 7
"""Bytes of a word, the blank after it included."""
CHUNK = 100_000


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
        measure = lines[0]["p50 ms"]
        fresh = _make_fresh(table, notes, documents, sstables, sstable_rows, tail_mb << 20)
        lines += _with_fresh(table, texts, fresh, measure)
    show(f"{documents} documents of {words} words, {queries} queries, k = 10", lines, output)


def _base_alone(table: Table, texts: list[str]) -> list[dict[str, Any]]:
    dataset, searcher = lance.dataset(table.uri), table.searcher()
    for text in texts[:10]:
        _native(dataset, text), searcher.search(text, "note")
    ways: list[tuple[str, Callable[[str], pa.Table]]] = [
        ("native, open dataset", lambda text: _native(dataset, text)),
        ("headgate, one instant", lambda text: searcher.search(text, "note")),
        ("native, opened each time", lambda text: _native(lance.dataset(table.uri), text)),
        ("headgate, table.search", lambda text: table.search(text, column="note")),
    ]
    took: dict[str, list[float]] = {name: [] for name, _ in ways}
    for text in texts:
        for name, search in ways:
            took[name] += _timed(search, [text])
    opened = ("native, open dataset", "native, opened each time")
    lines = []
    for place, (name, seconds) in enumerate(took.items()):
        peer = took[opened[place // 2]]
        lines.append({"rows": "base", "search": name, **_line(seconds), "p50 / native": _p50(seconds) / _p50(peer)})
    return lines


def _make_fresh(table: Table, notes: Notes, documents: int, sstables: int, rows: int, tail: int) -> str:
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
    return f"base + {sstables} SSTables + {tail >> 20} MB tail"


def _with_fresh(table: Table, texts: list[str], fresh: str, measure: float) -> list[dict[str, Any]]:
    (first,) = _timed(lambda text: table.search(text, column="note"), texts[:1])
    searcher = table.searcher()
    held = _timed(lambda text: searcher.search(text, "note"), texts)
    anew = _timed(lambda text: table.search(text, column="note"), texts[: max(len(texts) // 10, 5)])
    _add_one(table)
    (after,) = _timed(lambda text: table.search(text, column="note"), texts[:1])
    line = {"rows": fresh}
    return [
        {**line, "search": "headgate, the first, cold", "p50 ms": first * 1e3},
        {**line, "search": "headgate, one instant", **_line(held), "p50 / native": _p50(held) * 1e3 / measure},
        {**line, "search": "headgate, table.search", **_line(anew), "p50 / native": _p50(anew) * 1e3 / measure},
        {**line, "search": "headgate, after one more put", "p50 ms": after * 1e3},
    ]


def _add_one(table: Table) -> None:
    with table.writer("single", WriterConfig(enable_memtable=False)) as writer:
        writer.put(pa.table({"id": [0], "note": ["w00000 fresh"]}, schema=SCHEMA))


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
