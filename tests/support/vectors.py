"""Vectors that lie as embeddings do, near a surface of few dimensions and in clusters, and how many an index finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import headgate
from headgate.shards.vectors import LEAST_TRAIN_ROWS
from headgate.table.table import Table

DIMENSION, HIDDEN, CLUSTERS = 32, 8, 40


def embeddings(count: int, seed: int) -> np.ndarray[Any, Any]:
    """The same for the same arguments; all from one world."""
    world, chance = np.random.default_rng(7), np.random.default_rng(seed)
    centers, surface = world.standard_normal((CLUSTERS, HIDDEN)), world.standard_normal((HIDDEN, DIMENSION))
    hidden = centers[chance.integers(0, CLUSTERS, count)] + 0.5 * chance.standard_normal((count, HIDDEN))
    found: np.ndarray[Any, Any] = hidden @ surface + 0.05 * chance.standard_normal((count, DIMENSION))
    return found.astype(np.float32)


def schema_of(kind: pa.DataType = pa.float32()) -> pa.Schema:  # noqa: B008
    return pa.schema([pa.field("id", pa.int64(), False), pa.field("embedding", pa.list_(kind, DIMENSION))])


def rows(count: int, start: int, *, seed: int | None = None, kind: pa.DataType = pa.float32()) -> pa.Table:  # noqa: B008
    """Rows with ids from `start`."""
    numbers = pa.array(embeddings(count, start if seed is None else seed).ravel()).cast(kind)
    vectors = pa.FixedSizeListArray.from_arrays(numbers, DIMENSION)
    return pa.table([np.arange(start, start + count), vectors], schema=schema_of(kind))


def make(path: Path, *, key: str | None = "id", **vector: Any) -> Table:
    given = {"metric": "cosine", "train_rows": LEAST_TRAIN_ROWS, **vector}
    kind = pa.float16() if given.pop("half", False) else pa.float32()
    return headgate.create_table(
        str(path), schema_of(kind), primary_key=key, vector={"embedding": headgate.vector(**given)}
    )


def append(table: Table, count: int, start: int) -> None:
    """Rows into the base, in a fragment of their own."""
    kind = table.schema.field("embedding").type.value_type
    lance.write_dataset(rows(count, start, kind=kind).cast(table.schema), table.uri, mode="append")


def recall(table: Table, queries: int = 100, k: int = 10, **options: Any) -> float:
    """The part of the k nearest of all visible rows, by brute force, that a search finds, on average."""
    shown = table.scan(columns=["id", "embedding"]).read_all()
    all_rows = lance.write_dataset(shown, "memory://", mode="create")
    metric = table.vectors[0].metric
    found = 0
    for query in embeddings(queries, 999):
        nearest = {"column": "embedding", "q": query, "k": k, "metric": metric, "use_index": False}
        expected = all_rows.scanner(columns=["id"], nearest=nearest).to_table().column("id").to_pylist()
        ours = table.nearest(query, k=k, columns="id", **options).column("id").to_pylist()
        assert len(ours) == len(set(ours)) == min(k, shown.num_rows)
        found += len(set(ours) & set(expected))
    return found / (queries * k)
