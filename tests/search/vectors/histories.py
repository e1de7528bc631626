"""Random lives of a table of vectors, and native's brute force over what a scan shows, to compare with."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import headgate
from headgate.shards.rows.view import TableView
from headgate.shards.sharding import Sharding, bucket, single
from headgate.shards.vectors import Metric
from headgate.table.table import Table
from tests.search.query.histories import History

Hit = tuple[float, int, Any]
"""Distance, id, vector."""


def schema_of(kind: pa.DataType, dimension: int) -> pa.Schema:
    return pa.schema(
        [
            pa.field("id", pa.int64(), False),
            pa.field("embedding", pa.list_(kind, dimension)),
            pa.field("size", pa.int32()),
        ]
    )


def make_table(
    path: Path, metric: Metric = "l2", *, keyed: bool = True, shards: int = 1, half: bool = False, dimension: int = 6
) -> Table:
    sharding: Sharding = single() if shards == 1 else bucket("id", shards)
    return headgate.create_table(
        str(path),
        schema_of(pa.float16() if half else pa.float32(), dimension),
        primary_key="id" if keyed else None,
        sharding=sharding,
        vector={"embedding": headgate.vector(metric)},
    )


def some(chance: random.Random, dimension: int) -> list[float]:
    """Numbers that lie on a coarse grid now and then, so that distances are equal."""
    if chance.random() < 0.3:
        return [float(chance.randint(-2, 2)) for _ in range(dimension)]
    return [chance.gauss(0, 1) for _ in range(dimension)]


class VectorHistory(History):
    """The same life, of vectors; some are null, of zeros, or no numbers."""

    def _rows(self, numbers: list[int]) -> pa.Table:
        schema = self.table.schema
        width = schema.field("embedding").type.list_size
        vectors: list[Any] = []
        for _ in numbers:
            odd = self.chance.random()
            vectors.append(
                None
                if odd < 0.05
                else [0.0] * width
                if odd < 0.1
                else [float("nan")] * width
                if odd < 0.12
                else some(self.chance, width)
            )
        column = pa.array(vectors, pa.list_(pa.float64(), width)).cast(schema.field("embedding").type)
        plain = pa.schema([field.remove_metadata() for field in schema])
        return pa.table([numbers, column, [number % 7 for number in numbers]], schema=plain)

    def _index(self) -> None:
        """There is none while the base has few rows."""


class Oracle:
    """Native's brute force over exactly the rows that a scan shows."""

    def __init__(self, table: Table | TableView, metric: Metric) -> None:
        self.shown = table.scan().read_all()
        self._metric = metric
        self._dataset = lance.write_dataset(self.shown, f"memory://{uuid.uuid4().hex}")

    def answer(self, query: np.ndarray[Any, Any], k: int | None = None, filter: str | None = None) -> list[Hit]:
        """The k nearest, or every hit, nearest first."""
        nearest = {"column": "embedding", "q": query, "k": k or max(1, self.shown.num_rows), "metric": self._metric}
        found = self._dataset.scanner(
            columns=["id", "embedding", "_distance"], nearest=nearest, filter=filter, prefilter=True
        ).to_table()
        return told(found)


def told(found: pa.Table) -> list[Hit]:
    return list(zip(*(found.column(name).to_pylist() for name in ("_distance", "id", "embedding")), strict=True))


def differ(ours: list[Hit], native: list[Hit], k: int) -> str | None:
    """How an answer differs from all of native's, cut at k. Among equals, others may be cut."""
    if len(ours) != min(k, len(native)):
        return f"{len(ours)} hits instead of {min(k, len(native))}"
    left = list(native)
    for (distance, *hit), (expected, *_) in zip(ours, native, strict=False):
        if not same(distance, expected):
            return f"distance {distance} of {hit} instead of {expected}"
        found = next((one for one in left if list(one[1:]) == hit and same(one[0], distance)), None)
        if found is None:
            return f"{hit} at {distance}, which native does not have"
        left.remove(found)
    return None


def same(one: float, other: float) -> bool:
    """Native adds in another order, in the same 32 bits."""
    return one == other or abs(one - other) <= 2e-6 * max(1.0, abs(one), abs(other))


def check_nearest(table: Table, oracle: Oracle, chance: random.Random, count: int) -> None:
    """So many random queries, each compared with native's answer."""
    width = table.schema.field("embedding").type.list_size
    for _ in range(count):
        query = some(chance, width) if chance.random() < 0.7 else [1.0, *[0.0] * (width - 1)]
        query = query if any(query) else [1.0] * width
        filter = chance.choice([None, None, "size = 3", "size > 1 AND id % 2 = 0", "size > 100"])
        k = chance.choice([1, 3, 10, 1000])
        ours = told(table.nearest(query, k=k, filter=filter))
        wrong = differ(ours, oracle.answer(np.array(query, np.float32), filter=filter), k)
        assert wrong is None, f"{query} filter={filter} k={k}: {wrong}"
