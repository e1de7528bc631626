"""What the demo checks after the stream has stopped: plain Lance, search and a checkpoint.

Each result is compared with the produced records: plain Lance reads every row, a search finds exactly the orders with a
word, before and after the base's index is complete, and the checkpoint has the rows of the instant at which it was
taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import lance
import pyarrow as pa
import pyarrow.compute as pc

from headgate import clock
from headgate.dev.demo.orders import KEY, TEXT, WORD
from headgate.table.table import Table, open_table

CHECKPOINT = "demo"


@dataclass(frozen=True)
class After:
    """The results."""

    plain_rows: int
    """Rows that plain Lance reads: a clean stop compacts all rows into the base."""
    hits: int
    hits_expected: int
    search_ms: float
    """Time of a second search at the same instant: the first one reads the indexes."""
    checkpoint_rows: int
    """Rows of the checkpoint."""
    holds: bool


def look_after(table: Table, expected: pa.Table) -> After:
    """Read it with plain Lance, search, take a checkpoint, complete the index, search again, read the checkpoint."""
    wanted = set(expected.filter(pc.match_substring(expected[TEXT], WORD))[KEY].to_pylist())
    plain_rows = lance.dataset(table.uri).count_rows()
    searcher = table.searcher()
    found = _hits(searcher.search(WORD, TEXT, expected.num_rows))
    began = clock.monotonic()
    searcher.search(WORD, TEXT, 10)
    search_ms = (clock.monotonic() - began) * 1000
    table.checkpoint("all", name=CHECKPOINT)
    table.compact()
    again = _hits(table.search(WORD, column=TEXT, k=expected.num_rows))
    rows = open_table(table.uri, checkpoint=CHECKPOINT).scan(columns=[KEY]).read_all()
    holds = found == again == wanted and sorted(rows[KEY].to_pylist()) == sorted(expected[KEY].to_pylist())
    holds = holds and plain_rows == expected.num_rows
    return After(plain_rows, len(found), len(wanted), search_ms, rows.num_rows, holds)


def _hits(found: pa.Table) -> set[int]:
    return set(found[KEY].to_pylist())
