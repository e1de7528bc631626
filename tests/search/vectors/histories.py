"""Random lives of a table of vectors, and native's brute force over what a scan shows, to compare with."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any, get_args

import lance
import numpy as np
import pyarrow as pa

import headgate
from headgate.search.vectors.fusion import Fuse
from headgate.shards.rows.view import TableView
from headgate.shards.sharding import Sharding, bucket, single
from headgate.shards.vectors import Metric
from headgate.table.table import Table
from tests.search.query.histories import SAME, History, query, text
from tests.search.query.histories import Oracle as TextOracle

Hit = tuple[float, int, Any]
"""Distance, id, vector."""


def schema_of(kind: pa.DataType, dimension: int) -> pa.Schema:
    return pa.schema(
        [
            pa.field("id", pa.int64(), False),
            pa.field("embedding", pa.list_(kind, dimension)),
            pa.field("size", pa.int32()),
            pa.field("note", pa.string()),
        ]
    )


def make_table(
    path: Path,
    metric: Metric = "l2",
    *,
    keyed: bool = True,
    shards: int = 1,
    half: bool = False,
    dimension: int = 6,
    full_text: str | tuple[()] = (),
) -> Table:
    sharding: Sharding = single() if shards == 1 else bucket("id", shards)
    return headgate.create_table(
        str(path),
        schema_of(pa.float16() if half else pa.float32(), dimension),
        primary_key="id" if keyed else None,
        sharding=sharding,
        full_text=full_text,
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
        notes = [text(self.chance) if self.table.full_text else None for _ in numbers]
        return pa.table([numbers, column, [number % 7 for number in numbers], notes], schema=plain)

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


def check_hybrid(table: Table, metric: Metric, chance: random.Random, count: int) -> None:
    """So many random queries by words and a vector, compared with what native's answers to both make together."""
    texts, vectors = TextOracle(table), Oracle(table, metric)
    width = table.schema.field("embedding").type.list_size
    for _ in range(count):
        words, vector = query(chance), [chance.gauss(0, 1) for _ in range(width)]
        filter = chance.choice([None, None, "size > 1 AND id % 2 = 0"])
        fuse: Fuse = chance.choice(get_args(Fuse))
        weight = chance.choice([0.0, 0.3, 1.0])
        scores = {number: score for score, number, _ in texts.answer(words, "any", filter)}
        away = {number: one for one, number, _ in vectors.answer(np.array(vector, np.float32), filter=filter)}
        expected = fused(scores, away, weight if fuse == "weighted" else None)
        found = table.hybrid(words, vector, k=1000, fuse=fuse, weight=weight, filter=filter).to_pylist()
        told = f"{words!r} {vector} {filter=} {fuse=} {weight=}"
        assert {row["id"] for row in found} == set(expected), told
        assert len(found) == len(expected), told
        for row in found:
            number = row["id"]
            assert (row["_score"] is None) == (number not in scores), told
            assert (row["_distance"] is None) == (number not in away), told
            assert abs((row["_score"] or 0) - scores.get(number, 0)) <= SAME, told
            assert same(row["_distance"] or 0, away.get(number, 0)), told
            least, most = expected[number]
            assert least - SAME <= row["_relevance"] <= most + SAME, told
        order = [row["_relevance"] for row in found]
        assert order == sorted(order, reverse=True), told
        if table.count() <= 100:
            few = table.hybrid(words, vector, k=3, fuse=fuse, weight=weight, filter=filter)
            assert few.column("_relevance").to_pylist() == order[:3], told


def fused(scores: dict[int, float], away: dict[int, float], weight: float | None) -> dict[int, tuple[float, float]]:
    """Row by row, as it is told to users; from the least to the most, where others are as good up to the last bits."""
    if weight is None:
        text, vector = _ranked({number: -score for number, score in scores.items()}), _ranked(away)
        none = (0.0, 0.0)
        pairs = {number: (text.get(number, none), vector.get(number, none)) for number in {*scores, *away}}
        return {number: (one[0] + two[0], one[1] + two[1]) for number, (one, two) in pairs.items()}
    found = {}
    for number in {*scores, *away}:
        span = max(away.values()) - min(away.values()) if away else 0
        closeness = (max(away.values()) - away[number]) / span if number in away and span else float(number in away)
        sum_of_both = weight * scores.get(number, 0) / max(scores.values(), default=1) + (1 - weight) * closeness
        found[number] = (sum_of_both, sum_of_both)
    return found


def _ranked(numbers: dict[int, float]) -> dict[int, tuple[float, float]]:
    found = {}
    for number, one in numbers.items():
        near = sum(abs(other - one) <= SAME for other in numbers.values())
        before = sum(other < one - SAME for other in numbers.values())
        found[number] = (1 / (60 + before + near), 1 / (61 + before))
    return found
