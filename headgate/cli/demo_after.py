"""What the demo shows of a table once its rows are there: search, a checkpoint, and rows taken into the base.

Each answer is compared with what was produced: a search finds exactly the orders with that word, before and after
the rows moved, and the checkpoint shows the instant at which it was taken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headgate.cli.demo_orders import KEY, TEXT, WORD
from headgate.table import Table, open_table

CHECKPOINT = "demo"


@dataclass(frozen=True)
class After:
    """What was seen."""

    sstables: int
    """That the stream had flushed when it stopped."""
    hits: int
    hits_expected: int
    search_ms: float
    """Of the second search of the same instant: the first one reads the indexes."""
    checkpoint_rows: int
    """That the checkpoint shows, after the rows were taken into the base."""
    compacted: int
    """SSTables that were taken into the base."""
    holds: bool


def look_after(table: Table, expected: pa.Table) -> After:
    """Search, take a checkpoint, take the rows into the base, search again, read the checkpoint back."""
    wanted = set(expected.filter(pc.match_substring(expected[TEXT], WORD))[KEY].to_pylist())
    sstables = sum(info.sstables for info in table.shards())
    searcher = table.searcher()
    found = _hits(searcher.search(WORD, TEXT, expected.num_rows))
    began = time.monotonic()
    searcher.search(WORD, TEXT, 10)
    search_ms = (time.monotonic() - began) * 1000
    table.checkpoint("all", CHECKPOINT)
    compacted = table.compact().sstables
    again = _hits(table.search(WORD, TEXT, expected.num_rows))
    rows = open_table(table.uri, checkpoint=CHECKPOINT).scan([KEY]).read_all()
    holds = found == again == wanted and sorted(rows[KEY].to_pylist()) == sorted(expected[KEY].to_pylist())
    return After(sstables, len(found), len(wanted), search_ms, rows.num_rows, compacted, holds)


def _hits(found: pa.Table) -> set[int]:
    return set(found[KEY].to_pylist())
