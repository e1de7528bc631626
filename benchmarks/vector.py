"""Search by vector beside native pylance: base with its index, SSTables, and a tail of fresh rows.

- *native, one dataset*: all visible rows in one dataset with one index, built with the model (partitions, codes) that
  headgate trained, searched with the same nprobes and refine. That is what a search costs once everything is compacted.
  Training takes most of the time, so one training serves both.
- *native, LSM planner*: `LsmVectorSearchPlanner` over the same base and SSTables; it knows no tail in the WAL.
- recall@10 is the part of the ten nearest of all visible rows, found by brute force, that comes back.
- Vectors lie as embeddings do: in clusters near a surface of few dimensions. Queries come from the same world.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")  # Lance warns in every search of the planner.

import click
import lance
import numpy as np
import pyarrow as pa

from benchmarks.report import output_option, show_all
from headgate.connectors.lance.vectors import build_arguments, partitions_for, read_model
from headgate.search.vectors.base import LEAST_PROBES, PROBED, REFINE
from headgate.search.vectors.distances import matrix
from headgate.shards.config import WriterConfig
from headgate.shards.vectors import vector
from headgate.table.create import create_table
from headgate.table.table import Table

CHUNK, K = 50_000, 10
Search = Callable[[np.ndarray[Any, Any]], pa.Table]


@dataclass(frozen=True)
class Sizes:
    """Of what is searched."""

    base: int
    sstables: int
    sstable_rows: int
    tail_mb: int
    queries: int
    ingest: int


PRESETS = {
    "full": Sizes(1_000_000, 4, 25_000, 64, 200, 100_000),
    "medium": Sizes(200_000, 4, 25_000, 64, 200, 50_000),
    "quick": Sizes(70_000, 4, 2_500, 8, 100, 20_000),
}


class World:
    """Where vectors come from."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        chance = np.random.default_rng(7)
        self._centers = chance.standard_normal((1_000, 32), np.float32)
        self._surface = chance.standard_normal((32, dimension), np.float32)
        self.schema = pa.schema([pa.field("id", pa.int64(), False), ("embedding", pa.list_(pa.float32(), dimension))])

    def vectors(self, count: int, seed: int) -> np.ndarray[Any, Any]:
        chance = np.random.default_rng(seed)
        hidden = self._centers[chance.integers(0, len(self._centers), count)]
        hidden = hidden + 0.6 * chance.standard_normal(hidden.shape, np.float32)
        found: np.ndarray[Any, Any] = hidden @ self._surface
        found += 0.1 * chance.standard_normal(found.shape, np.float32)
        return found

    def rows(self, ids: np.ndarray[Any, Any], seed: int) -> pa.Table:
        numbers = pa.array(self.vectors(len(ids), seed).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(numbers, self.dimension)
        return pa.table([ids, vectors], schema=self.schema)


@click.command()
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), default="full", show_default=True, help="Sizes to start from."
)
@click.option("--base", type=int, help="Rows of the base. Default: the preset's.")
@click.option("--sstables", type=int, help="SSTables; half of their rows are newer versions of rows of the base.")
@click.option("--sstable-rows", type=int)
@click.option("--tail-mb", type=int, help="Megabytes of fresh rows in the WAL.")
@click.option("--queries", type=int)
@click.option("--ingest", type=int, help="Rows that are ingested beside Lance fragments; 0: none.")
@click.option("--dimension", default=384, show_default=True)
@click.option("--metric", type=click.Choice(["l2", "cosine", "dot"]), default="cosine", show_default=True)
@click.option("--index", type=click.Choice(["IVF_PQ", "IVF_HNSW_SQ"]), default="IVF_PQ", show_default=True)
@output_option
def main(preset: str, dimension: int, metric: Any, index: Any, output: str, **given: int | None) -> None:
    """Milliseconds a query, p50 and p99, recall, and as a ratio to native's."""
    sizes = Sizes(**{**vars(PRESETS[preset]), **{name: one for name, one in given.items() if one is not None}})
    world = World(dimension)
    with tempfile.TemporaryDirectory() as folder:
        made = create_table(
            os.path.join(folder, "table"),
            world.schema,
            primary_key="id",
            vector={"embedding": vector(metric, index=index)},
        )
        built = _fill(made, world, sizes)
        queries = world.vectors(sizes.queries, 999_999)
        rows = made.count()
        whole, native_built = _one_dataset(made, os.path.join(folder, "whole"), metric, index)
        truth = _truth(made, queries, metric)
        lines = _search(made, whole, queries, truth, metric, max(LEAST_PROBES, round(PROBED * _partitions(made))))
        shutil.rmtree(os.path.join(folder, "whole"))
        ingest = _ingest(Path(folder), world, sizes.ingest) if sizes.ingest else []
    title = f"{rows:,} visible rows × {dimension}, {metric}, {index}: {sizes}, k = {K}"
    building = [
        {"index of the base": "headgate, with training", "rows": sizes.base, "seconds": built},
        {"index of the base": "native, one dataset, same model", "rows": rows, "seconds": native_built},
    ]
    show_all([(title, lines), ("Building the index", building), ("Ingest with vectors", ingest)], output)


def _fill(table: Table, world: World, sizes: Sizes) -> float:
    for start in range(0, sizes.base, CHUNK):
        ids = np.arange(start, min(start + CHUNK, sizes.base))
        lance.write_dataset(world.rows(ids, start).cast(table.schema), table.uri, mode="append")
    began = time.perf_counter()
    table.build_index("embedding")
    built = time.perf_counter() - began
    chance, last = np.random.default_rng(11), sizes.base
    with table.writer("single", WriterConfig(max_memtable_rows=sizes.sstable_rows + 1)) as writer:
        for _ in range(sizes.sstables):
            older = chance.choice(sizes.base, sizes.sstable_rows // 2, replace=False)
            ids = np.concatenate([older, np.arange(last, last + sizes.sstable_rows - len(older))])
            writer.put(world.rows(ids, 1_000_000_000 + last))
            writer.flush_memtable()
            last += len(ids)
    # WAL-only: what is put stays in the WAL, however much it is.
    with table.writer("single", WriterConfig(enable_memtable=False)) as writer:
        put = 0
        while put < sizes.tail_mb << 20:
            batch = world.rows(np.arange(last, last + 2_000), 1_000_000_000 + last)
            writer.put(batch)
            put, last = put + batch.nbytes, last + 2_000
    return built


def _one_dataset(table: Table, uri: str, metric: str, index: str) -> tuple[Any, float]:
    dataset = lance.write_dataset(table.scan(), uri)
    (segment, *_) = _segments(table)
    model = read_model(f"{table.uri}/_indices/{segment}", {})
    began = time.perf_counter()
    dataset = dataset.create_index("embedding", index, **build_arguments(index, metric, model))
    return dataset, time.perf_counter() - began


def _segments(table: Table) -> list[str]:
    described = lance.dataset(table.uri).describe_indices()
    return [str(one.uuid) for index in described if index.field_names == ["embedding"] for one in index.segments]


def _partitions(table: Table) -> int:
    return partitions_for(table.vectors[0].index, lance.dataset(table.uri).count_rows())


def _truth(table: Table, queries: np.ndarray[Any, Any], metric: str) -> list[set[int]]:
    """The ids of the nearest of every query, by matrix products over blocks of all visible rows."""
    lengths = np.linalg.norm(queries, axis=1)
    best, ids = np.full((len(queries), K), np.inf, np.float32), np.zeros((len(queries), K), np.int64)
    for batch in table.scan():
        vectors = matrix(batch.column(1))
        away = -(queries @ vectors.T)
        if metric == "cosine":
            away /= np.linalg.norm(vectors, axis=1) * lengths[:, None]
        if metric == "l2":
            away = (vectors * vectors).sum(axis=1) + 2 * away
        every = np.concatenate([best, away], axis=1)
        numbers = np.concatenate([ids, np.broadcast_to(batch.column(0).to_numpy(), away.shape)], axis=1)
        nearest = np.argpartition(every, K - 1, axis=1)[:, :K]
        best, ids = np.take_along_axis(every, nearest, 1), np.take_along_axis(numbers, nearest, 1)
    return [set(row.tolist()) for row in ids]


def _search(
    table: Table, whole: Any, queries: np.ndarray[Any, Any], truth: Sequence[set[int]], metric: str, probes: int
) -> list[dict[str, Any]]:
    nearest = {"column": "embedding", "k": K, "metric": metric, "minimum_nprobes": probes, "refine_factor": REFINE}

    def native(query: np.ndarray[Any, Any]) -> pa.Table:
        return whole.scanner(columns=["id", "_distance"], nearest={**nearest, "q": query}).to_table()

    began = time.perf_counter()
    table.nearest(queries[0], k=K, columns=["id"])
    cold = time.perf_counter() - began
    ways: dict[str, Search] = {
        "native, one dataset": native,
        "headgate, base + SSTables + tail": lambda query: table.nearest(query, k=K, columns=["id"]),
    }
    planner = _planner(table, metric, probes)
    problem = ""
    try:
        planner(queries[0])
        ways["native, LSM planner: base + SSTables"] = planner
    except Exception as error:
        problem = str(error).partition(", /")[0][:160]
    took: dict[str, list[float]] = {name: [] for name in ways}
    right = dict.fromkeys(ways, 0)
    for warm_up in range(5):
        for search in ways.values():
            search(queries[warm_up])
    for number, query in enumerate(queries):
        turn = number % len(ways)
        for name, search in [*ways.items()][turn:] + [*ways.items()][:turn]:
            began = time.perf_counter()
            found = search(query)
            took[name].append(time.perf_counter() - began)
            right[name] += len(truth[number] & set(found.column("id").to_pylist()))
    lines = [_line(name, seconds, right[name], took["native, one dataset"]) for name, seconds in took.items()]
    lines.append({"search": "headgate, the first, cold", "p50 ms": cold * 1e3})
    return [*lines, {"search": f"native, LSM planner: {problem}"}] if problem else lines


def _line(name: str, seconds: Sequence[float], right: int, peer: Sequence[float]) -> dict[str, Any]:
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    ratio = float(np.median(np.array(seconds) / np.array(peer)))
    return {
        "search": name,
        "p50 ms": float(p50),
        "p99 ms": float(p99),
        "recall@10": right / (len(seconds) * K),
        "/ native": ratio,
    }


def _planner(table: Table, metric: str, probes: int) -> Search:
    shard = table.shard("single")
    manifest = shard.manifests.latest()
    assert manifest is not None
    snapshot = lance.ShardSnapshot(str(shard.id)).with_current_generation(manifest.generation)
    for one in manifest.sstables:
        snapshot = snapshot.with_sstable(one.generation, one.path)
    planner = lance.LsmVectorSearchPlanner(lance.dataset(table.uri), [snapshot], "embedding", distance_type=metric)

    def search(query: np.ndarray[Any, Any]) -> pa.Table:
        plan = planner.plan_search(pa.array(query), K, probes, ["id"], refine_base_table=True)
        return plan.to_table()

    return search


def _ingest(folder: Path, world: World, rows: int) -> list[dict[str, Any]]:
    """Batches of 2,000 rows, each durable or committed before the next, in turns."""
    batches = [world.rows(np.arange(start, start + 2_000), start) for start in range(0, rows, 2_000)]
    table = create_table(str(folder / "ingest"), world.schema, primary_key="id", vector={"embedding": vector("cosine")})
    fragments = str(folder / "fragments")
    lance.write_dataset(batches[0].slice(0, 0), fragments)
    ours: list[float] = []
    theirs: list[float] = []
    with table.writer("single", WriterConfig(enable_memtable=False)) as writer:
        ways: Mapping[int, tuple[list[float], Callable[[pa.Table], object]]] = {
            0: (ours, writer.put),
            1: (theirs, lambda batch: lance.write_dataset(batch, fragments, mode="append")),
        }
        for number, batch in enumerate(batches):
            for turn in (number % 2, 1 - number % 2):
                took, write = ways[turn]
                began = time.perf_counter()
                write(batch)
                took.append(time.perf_counter() - began)
    ratio = float(np.median(np.array(theirs) / np.array(ours)))
    return [
        {"ingest": "headgate, WAL-only, durable puts", "rows/s": rows / sum(ours), "/ Lance fragments": ratio},
        {"ingest": "Lance fragments, never synced", "rows/s": rows / sum(theirs), "/ Lance fragments": 1.0},
    ]


if __name__ == "__main__":
    main()
