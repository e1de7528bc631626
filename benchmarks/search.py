"""Full-text indexes: building beside native's own build, finalizing by the number of parts, many increments, queries.

The corpus is the same for all parts of the benchmark: documents of so many words, drawn from a vocabulary in which
low words are common, as in texts. Each part is a function of its own and may be run alone.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import lance
import numpy as np
import pyarrow as pa

from benchmarks.report import output_option, show_all
from headgate.connectors.lance.index import look_index
from headgate.connectors.objects import open_store
from headgate.search.build.build import build_index
from headgate.search.build.jobs import BuildJob, build
from headgate.search.build.plan import Limits
from headgate.search.finalize.finalize import finalize
from headgate.search.finalize.segment import IndexFolder, together

NAME = "note_idx"
INCREMENTS = 64
SAMPLED = (1, 7, 15, 31, 63, 64)
"""Just before a power of two most segments stand beside each other, at one all have become one."""


@dataclass(frozen=True)
class Corpus:
    """How much text, and where it is kept meanwhile."""

    documents: int
    words: int
    vocabulary: int
    folder: Path

    def table(self, seed: int, documents: int) -> pa.Table:
        """So many documents; the same for the same seed."""
        chance = np.random.default_rng(seed)
        drawn = (self.vocabulary * chance.random(documents * self.words) ** 3).astype(np.int64)
        words = pa.array([f"w{number}" for number in range(self.vocabulary)]).take(pa.array(drawn))
        offsets = pa.array(np.arange(0, documents * self.words + 1, self.words, dtype=np.int32))
        notes = pa.compute.binary_join(pa.ListArray.from_arrays(offsets, words), " ")
        return pa.table({"id": np.arange(documents) + seed * 10**9, "note": notes})

    def base(self, fragments: int) -> str:
        """A dataset with all of it."""
        uri = str(self.folder / uuid.uuid4().hex)
        lance.write_dataset(self.table(1, self.documents), uri, max_rows_per_file=-(-self.documents // fragments))
        return uri


Shown = tuple[str, list[dict[str, Any]]]
"""A title, and the rows below it."""


def in_turns(rounds: int, **candidates: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each candidate in each round, after one to warm up; each round begins with another one."""
    took: dict[str, list[float]] = {who: [] for who in candidates}
    for number in range(rounds + 1):
        order = list(candidates)
        for who in order[number % len(order) :] + order[: number % len(order)]:
            seconds = candidates[who]()
            if number:
                took[who].append(seconds)
    return took


def ratio(these: list[float], those: list[float]) -> float:
    """The median of the rounds' own ratios, so that a slow moment of the machine meets both."""
    return median(one / other for one, other in zip(these, those, strict=True))


def part_build(corpus: Corpus, rounds: int) -> Iterator[Shown]:
    """In one process, in turns with native's single build; a ratio above 1 means that native is faster."""
    uri = corpus.base(64)

    def timed(build_it: Callable[[str], object]) -> float:
        copy = str(corpus.folder / "copy")
        shutil.copytree(uri, copy)
        start = time.perf_counter()
        build_it(copy)
        took = time.perf_counter() - start
        shutil.rmtree(copy)
        return took

    took = in_turns(
        rounds,
        native=lambda: timed(lambda at: lance.dataset(at).create_scalar_index("note", "INVERTED", name=NAME)),
        headgate=lambda: timed(lambda at: build_index(open_store(at), "note", NAME)),
    )
    rows = [
        {"builder": who, "s": median(seconds), "/ native": ratio(seconds, took["native"])}
        for who, seconds in took.items()
    ]
    yield f"Build of {corpus.documents:,} documents in one process, medians of {rounds}", rows


def part_finalize(corpus: Corpus, rounds: int) -> Iterator[Shown]:
    """Staged by 4, 16 and 64 builders into one folder; native's finalize of the same beside it."""
    rows = []
    uri = corpus.base(64)
    store = open_store(uri)
    look = look_index(store, "note", NAME)
    for parts in (4, 16, 64):
        staged, expected = uuid.uuid4(), []
        for first in range(parts):
            fragments = tuple(range(64))[first::parts]
            count = sum(look.fragments[one].rows for one in fragments)
            job = BuildJob(store, "note", NAME, look.version, fragments, count)
            expected.append(build(IndexFolder(store, staged), job))
        built = together(expected)
        source = Path(uri) / "_indices" / str(staged)

        def timed(finalize_it: Callable[[uuid.UUID], object], source: Path = source) -> float:
            index_id = uuid.uuid4()
            target = source.with_name(str(index_id))
            shutil.copytree(source, target)
            start = time.perf_counter()
            finalize_it(index_id)
            took = time.perf_counter() - start
            shutil.rmtree(target)
            return took

        took = in_turns(
            rounds,
            headgate=lambda: timed(lambda index_id: finalize(IndexFolder(store, index_id), built)),  # noqa: B023
            native=lambda: timed(lambda index_id: lance.dataset(uri).merge_index_metadata(str(index_id), "INVERTED")),
        )
        nbytes = sum(built.final().values())
        rows.append(
            {
                "parts": parts,
                "MB": nbytes / 1e6,
                "s": median(took["headgate"]),
                "MB/s": nbytes / 1e6 / median(took["headgate"]),
                "native s": median(took["native"]),
                "native / this": ratio(took["native"], took["headgate"]),
            }
        )
    yield f"Finalize, medians of {rounds}; native also merges the parts, and never syncs", rows


def part_increments(corpus: Corpus, rounds: int) -> Iterator[Shown]:
    """The index grows by 64 increments: a query must not take longer by their number. Beside it: one index of all."""
    rows = []
    for title, limits in (("merged", Limits()), ("never merged", Limits(max_segments=10**6, segment_rows=1))):
        uri = str(corpus.folder / uuid.uuid4().hex)
        size = corpus.documents // INCREMENTS
        spent = 0.0
        for number in range(1, INCREMENTS + 1):
            lance.write_dataset(corpus.table(number, size), uri, mode="append" if number > 1 else "create")
            start = time.perf_counter()
            built = build_index(open_store(uri), "note", NAME, limits=limits)
            spent += time.perf_counter() - start
            if number in SAMPLED:
                whole = str(corpus.folder / "whole")
                lance.write_dataset(lance.dataset(uri).to_table(), whole).create_scalar_index("note", "INVERTED")
                grown, one = _query_times([uri, whole], corpus, rounds * 20)
                shutil.rmtree(whole)
                rows.append(
                    {
                        "segments are": title,
                        "increments": number,
                        "segments": built.segments,
                        "p50 ms": median(grown) * 1e3,
                        "p95 ms": quantiles(grown, n=20)[-1] * 1e3,
                        "p50 / one index": median(grown) / median(one),
                        "indexing s so far": spent,
                    }
                )
    yield f"{INCREMENTS} increments of {corpus.documents // INCREMENTS:,} documents", rows


def _query_times(uris: list[str], corpus: Corpus, count: int) -> list[list[float]]:
    """Of native's search over each base, in turns, words common and rare; one round to warm up."""
    datasets = [lance.dataset(uri) for uri in uris]
    chance = np.random.default_rng(7)
    queries = [" ".join(f"w{word}" for word in chance.integers(0, corpus.vocabulary, 2)) for _ in range(count)]
    seconds: list[list[float]] = [[] for _ in uris]
    for turn in range(2):
        for query in queries:
            for dataset, took in zip(datasets, seconds, strict=True):
                start = time.perf_counter()
                dataset.scanner(columns=["id", "_score"], full_text_query=query, limit=10).to_table()
                if turn:
                    took.append(time.perf_counter() - start)
    return seconds


Part = Callable[[Corpus, int], Iterator[Shown]]

PARTS: Mapping[str, Part] = {
    "build": part_build,
    "finalize": part_finalize,
    "increments": part_increments,
    # Queries over base, SSTables and tail are measured by a part of their own.
}


@click.command()
@click.option("--documents", default=500_000, show_default=True)
@click.option("--words", default=20, show_default=True, help="Of each document.")
@click.option("--vocabulary", default=50_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--part", "parts", type=click.Choice(list(PARTS)), multiple=True, help="Only these; may be repeated.")
@output_option
def main(documents: int, words: int, vocabulary: int, rounds: int, parts: tuple[str, ...], output: str) -> None:
    """Building, finalizing and querying full-text indexes."""
    tables: list[Shown] = []
    for name in parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            tables += PARTS[name](Corpus(documents, words, vocabulary, Path(folder)), rounds)
    show_all(tables, output)


if __name__ == "__main__":
    main()
