"""Random lives of a table, and native pylance with one fresh index over what a scan shows, to compare searches with."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.query import FullTextOperator, MatchQuery, PhraseQuery

from headgate.search.query.ranking import Match
from headgate.shards.rows.view import TableView
from headgate.shards.sharding import Sharding, bucket, single
from headgate.shards.writer import ShardWriter
from headgate.table.create import create_table
from headgate.table.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string()), pa.field("size", pa.int32())])
INDEX = "note_idx"

WORDS = [
    *["red", "green", "blue", "apple", "apples", "running", "runner", "ran", "the", "of", "and", "to", "gate", "gates"],
    *["Zürich", "zurich", "café", "naïve", "fooBar", "foo_bar", "x1", "don't", "e-mail", "ﬁn", "Straße"],
    *(f"w{number}" for number in range(12)),
]
COMMON = WORDS[:6]

Hit = tuple[float, int, str]
"""Score, id, text."""

SAME = 5e-5
"""Scores that differ by no more are the same in 4 decimals."""


def text(chance: random.Random, most: int = 12) -> str | None:
    """Some words, often the same few; now and then none, or no text at all."""
    if chance.random() < 0.05:
        return chance.choice([None, "", "the of", "...", " "])
    words = [chance.choice(COMMON if chance.random() < 0.5 else WORDS) for _ in range(chance.randint(1, most))]
    return chance.choice([" ", " ", ", ", "-"]).join(words)


def rows(pairs: list[tuple[int, str | None]]) -> pa.Table:
    ids, notes = [i for i, _ in pairs], [note for _, note in pairs]
    return pa.table({"id": ids, "note": notes, "size": [i % 7 for i in ids]}, schema=SCHEMA)


def make_table(
    path: Path, *, keyed: bool = True, shards: int = 1, parameters: Mapping[str, Any] | None = None
) -> Table:
    """An empty table whose column `note` is indexed in this way."""
    sharding: Sharding = single() if shards == 1 else bucket("id", shards)
    table = create_table(str(path), SCHEMA, primary_key="id" if keyed else None, sharding=sharding, full_text="note")
    if parameters:
        lance.dataset(table.uri).create_scalar_index("note", "INVERTED", name=INDEX, replace=True, **parameters)
    return table


class Oracle:
    """One native index over exactly the rows that a scan shows."""

    def __init__(self, table: Table | TableView, parameters: Mapping[str, Any] | None = None) -> None:
        shown = table.scan().read_all()
        self.dataset = lance.write_dataset(shown, f"memory://{uuid.uuid4().hex}")
        self.dataset.create_scalar_index("note", "INVERTED", name=INDEX, **(parameters or {}))

    def answer(self, words: str, match: Match, filter: str | None = None) -> list[Hit]:
        """Every hit, best first."""
        operator = FullTextOperator.AND if match == "all" else FullTextOperator.OR
        query = PhraseQuery(words, "note") if match == "phrase" else MatchQuery(words, "note", operator=operator)
        found = self.dataset.scanner(
            columns=["id", "note", "_score"], full_text_query=query, filter=filter, prefilter=True
        ).to_table()
        return told(found)


def told(found: pa.Table) -> list[Hit]:
    pairs = zip(*(found.column(name).to_pylist() for name in ("_score", "id", "note")), strict=True)
    return sorted(pairs, key=lambda hit: (-hit[0], hit[1], hit[2]))


def differ(ours: list[Hit], native: list[Hit], k: int) -> str | None:
    """How an answer differs from native's. Scores are compared in 4 decimals; among equals, others may be cut."""
    if len(ours) != min(k, len(native)):
        return f"{len(ours)} hits instead of {min(k, len(native))}"
    for (score, *hit), (expected, *_) in zip(ours, native, strict=False):
        if abs(score - expected) > SAME:
            return f"score {score} of {hit} instead of {expected}"
    left = list(native)
    for score, *hit in ours:
        found = next((one for one in left if list(one[1:]) == hit and abs(one[0] - score) <= SAME), None)
        if found is None:
            return f"{hit} with {score}, which native does not have"
        left.remove(found)
    return None


def check_searches(table: Table, oracle: Oracle, chance: random.Random, count: int, positions: bool = False) -> None:
    """So many random queries, each compared with native's answer."""
    for _ in range(count):
        words = query(chance)
        phrases: list[Match] = ["phrase", "phrase"] if positions else []
        match: Match = chance.choice(["any", "any", "all", *phrases])
        filter = chance.choice([None, None, None, "size = 3", "size > 1 AND id % 2 = 0", "size > 100"])
        k = chance.choice([1, 3, 10, 1000])
        ours = told(table.search(words, column="note", k=k, filter=filter, match=match))
        wrong = differ(ours, oracle.answer(words, match, filter), k)
        assert wrong is None, f"{words!r} match={match} filter={filter} k={k}: {wrong}"


def query(chance: random.Random) -> str:
    count = chance.choice([1, 1, 2, 2, 3, 5])
    words = [chance.choice(COMMON if chance.random() < 0.4 else [*WORDS, "nowhere"]) for _ in range(count)]
    return " ".join(words)


@dataclass
class History:
    """Puts, deletes, flushes, compactions, index builds, and what natives do to the base."""

    table: Table
    chance: random.Random
    log: list[str] = field(default_factory=list)
    _writers: dict[str, ShardWriter] = field(default_factory=dict)
    _next: int = 1000

    def step(self, what: str) -> None:
        self.log.append(what)
        getattr(self, f"_{what}")()

    @contextmanager
    def closing(self) -> Iterator[History]:
        try:
            yield self
        finally:
            self._close()

    def _put(self) -> None:
        names = self.table.sharding.known_names()
        taken: dict[str, list[int]] = {name: [] for name in names}
        for _ in range(self.chance.choice([1, 3, 20])):
            number = self.chance.randrange(40) if self.table.primary_key else self._new()
            taken[self._shard(number)].append(number)
        for name, numbers in taken.items():
            if numbers:
                self._writer(name).put(self._rows(numbers))

    def _rows(self, numbers: list[int]) -> pa.Table:
        return rows([(number, text(self.chance)) for number in numbers])

    def _delete(self) -> None:
        if self.table.primary_key:
            number = self.chance.randrange(40)
            self._writer(self._shard(number)).delete(pa.record_batch({"id": pa.array([number], pa.int64())}))

    def _flush(self) -> None:
        self._writer(self.chance.choice(self.table.sharding.known_names())).flush_memtable()

    def _compact(self) -> None:
        self._close()
        self.table.compact()

    def _index(self) -> None:
        self.table.build_index("note")

    def _native_append(self) -> None:
        added = [self._new() for _ in range(self.chance.choice([1, 30]))]
        lance.write_dataset(self._rows(added).cast(self.table.schema), self.table.uri, mode="append")

    def _native_put(self) -> None:
        """Native's own writer, which flushes when it is closed; newer rows of one flush delete older ones there."""
        self._close()
        number = self.chance.randrange(40) if self.table.primary_key else self._new()
        native = lance.dataset(self.table.uri).mem_wal_writer(str(self.table.shard(self._shard(number)).id))
        for _ in range(self.chance.choice([1, 3])):
            native.put(self._rows([number]).to_batches()[0])
            number = number if self.table.primary_key else self._new()
        if self.table.primary_key and self.chance.random() < 0.3:
            native.delete(pa.record_batch({"id": pa.array([number], pa.int64())}))
        native.close()

    def _native_delete(self) -> None:
        lance.dataset(self.table.uri).delete(f"id % 11 = {self.chance.randrange(11)}")

    def _native_compact(self) -> None:
        lance.dataset(self.table.uri).optimize.compact_files(defer_index_remap=self.chance.random() < 0.5)

    def _native_optimize(self) -> None:
        lance.dataset(self.table.uri).optimize.optimize_indices(num_indices_to_merge=self.chance.choice([0, 1, 2]))

    def _new(self) -> int:
        self._next += 1
        return self._next

    def _shard(self, number: int) -> str:
        names = self.table.sharding.known_names()
        if len(names) == 1:
            return names[0]
        from headgate.connectors.lance.dataset import bucket_ids

        return names[bucket_ids(pa.array([number], pa.int64()), len(names))[0].as_py()]

    def _writer(self, name: str) -> ShardWriter:
        if name not in self._writers:
            self._writers[name] = self.table.writer(name)
        return self._writers[name]

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


STEPS = ["put"] * 6 + ["delete"] * 2 + ["flush"] * 3 + ["index"] + ["compact"] + ["native_append"]
NATIVE_STEPS = ["native_put", "native_delete", "native_compact", "native_optimize"]
