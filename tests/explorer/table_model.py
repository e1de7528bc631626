"""A stream whose table is dropped and made anew under it, or between two of its runs (R23).

Each table has a log of its own, which nobody who opens the other one meets. Spark's checkpoint knows of neither: it
counts batches. What happens inside one table is in `stream_model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from headgate.checkpoints.log.decisions import BatchSources, Refusal
from tests.explorer.exploring import Action, Check, Model, Move, Witness
from tests.explorer.rules import Rules
from tests.explorer.stream_parts import QUERY, Known, Logged, Planned, as_state

PRODUCT = Rules()
IDS = (UUID(int=101), UUID(int=102))


@dataclass(frozen=True)
class TableBounds:
    """How much may happen."""

    name: str
    batches: int = 3
    restarts: int = 2
    fresh: int = 1
    """Restarts with an empty checkpoint directory."""


class Query(NamedTuple):
    """One query with its checkpoint: the table that it has open, if any, and the batch that Spark runs next."""

    table: int | None = None
    batch: int = 0
    looked: int | None = None
    """What its last look found in the place."""


def table_model(bounds: TableBounds, rules: Rules = PRODUCT) -> Model:
    """One query; the table is made anew once, at any time."""
    moves = _Moves(bounds, rules)
    actions = [
        Action(("query", "table", "restarts"), moves.start, lambda query: query.table is None),
        Action(("query", "table"), moves.look, _runs),
        Action(("query", "log0", "log1"), moves.batch, _runs),
        Action(("query", "fresh"), moves.fresh, lambda query: query.table is None and query.batch > 0),
        Action(("table",), moves.made_anew, lambda table: table == 0),
    ]
    start = {"query": Query(), "table": 0, "log0": (), "log1": (), "restarts": bounds.restarts, "fresh": bounds.fresh}
    return Model(
        bounds.name,
        start,
        actions,
        [Check((log,), _fault) for log in ("log0", "log1")],
        [
            Witness("the new table has all", ("log1",), lambda log: len(log) == bounds.batches),
            Witness("the old one was written to meanwhile", ("table", "log0"), lambda table, log: table and bool(log)),
        ],
    )


class _Moves:
    def __init__(self, bounds: TableBounds, rules: Rules) -> None:
        self._bounds = bounds
        self._rules = rules

    def start(self, query: Query, table: int, left: int) -> Iterator[Move]:
        if left:
            yield Move(("a run opens table", table), (query._replace(table=table, looked=table), table, left - 1))

    def look(self, query: Query, table: int) -> Iterator[Move]:
        ends = self._rules.is_another_table(IDS[query.table or 0], str(IDS[table]))
        looked = query._replace(table=None) if ends else query._replace(looked=table)
        yield Move(("a look finds table", table), (looked, table))

    def batch(self, query: Query, *logs: tuple[int, ...]) -> Iterator[Move]:
        """Decided by the log of the table that the query has open."""
        number, mine = query.batch, query.table
        assert mine is not None
        if number >= self._bounds.batches:
            return
        sources = BatchSources((Planned(number, number + 1, ()).source,))
        head = as_state(_known(logs[mine])).head
        if isinstance(self._rules.decide_batch(head, QUERY, number, sources, lambda topic, partition: 0), Refusal):
            yield Move(("batch", number, "is refused by table", mine), (query._replace(table=None), *logs))
            return
        late = "a stream goes on into a table that its look found gone" if query.looked != mine else None
        written = tuple((*log, number) if table == mine else log for table, log in enumerate(logs))
        yield Move(("batch", number, "goes into table", mine), (query._replace(batch=number + 1), *written), late)

    def fresh(self, query: Query, left: int) -> Iterator[Move]:
        if left:
            yield Move(("the checkpoint directory is emptied",), (Query(), left - 1))

    def made_anew(self, table: int) -> Iterator[Move]:
        yield Move(("the table is dropped and made anew",), (1,))


def _known(log: tuple[int, ...]) -> Known:
    opened = Logged(0, 1)
    batches = (
        Logged(0, place, (), opened.record_id, number, Planned(number, number + 1, ()))
        for place, number in enumerate(log, 2)
    )
    return Known(None, (opened, *batches) if log else ())


def _fault(log: tuple[int, ...]) -> str | None:
    if log != tuple(range(len(log))):
        return f"invariant 1: a table has batches {log}, and those before are missing"
    return None


def _runs(query: Query) -> bool:
    return query.table is not None
