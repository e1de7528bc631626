"""Random histories of puts, deletes, flushes, compactions, native changes and garbage collections against a model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headgate.checkpoints.jobs.compact import COMPACT_STEPS
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.shards.bucket import bucket_ids
from headgate.shards.sharding import bucket
from headgate.steps import watching
from headgate.table.table import open_table
from tests.support.compactions import KINDS, claimed, in_base, keys, make_table, one_round, open_writer, rows, scanned
from tests.support.datasets import pairs
from tests.support.stores import Crash

KEYS = 30
TIDY = BasePolicy(small_rows=1000, max_small=2, max_deleted=0.2, keep_versions=timedelta(0))
AT_ONCE = timedelta(0)


class History:
    """One table, and what it must show."""

    def __init__(self, path: Path, kind: str, seed: int) -> None:
        self.kind = kind
        self.chance = random.Random(seed)
        self.table = make_table(path, kind, bucket("id", 2))
        self.names = self.table.sharding.known_names()
        self.buckets = bucket_ids(pa.array(range(KEYS), pa.int64()), len(self.names)).to_pylist()
        self.model: Counter[tuple[int, str]] = Counter()
        self.told = f"replay with seed {seed}, {kind}:"
        self.pinned: tuple[str, Counter[tuple[int, str]]] | None = None

    def run(self, steps: int) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (8, self.write),
            (3, self.compact),
            (2, self.crash),
            (1, self.tidy),
            (2, self.collect),
            (1, self.pin),
            (1, self.native),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            action = self.chance.choices([one for _, one in actions], weights)[0]
            self.told += f" {action.__name__}"
            action()
            self.check()

    def check(self) -> None:
        expected = sorted(self.model.elements())
        assert scanned(self.table) == expected, self.told
        if self.kind == "key":
            asked = sorted(self.chance.sample(range(KEYS + 5), 5))
            found = pairs(self.table.get(keys(*asked)))
            assert found == [pair for pair in expected if pair[0] in asked], self.told
        if self.pinned is not None:
            name, then = self.pinned
            found = pairs(open_table(self.table.uri, checkpoint=name).scan())
            assert found == sorted(then.elements()), f"{self.told}: the checkpoint"

    # -- what may happen -----------------------------------------------------------------

    def write(self) -> None:
        """A writer of one shard: puts, deletes, flushes, and what it leaves in its MemTable."""
        number = self.chance.randrange(len(self.names))
        with open_writer(self.table, self.names[number]) as writer:
            for _ in range(self.chance.randrange(1, 4)):
                mine = [key for key in range(KEYS) if self.buckets[key] == number]
                ids = self.chance.sample(mine, self.chance.randrange(1, 6))
                kind = self.chance.random()
                if kind < 0.3 and self.kind == "key":
                    writer.delete(keys(*ids))
                    self._forget(ids)
                elif kind < 0.8:
                    note = f"n{self.chance.randrange(1000)}"
                    writer.put(rows(*((i, note) for i in ids)))
                    if self.kind == "key":
                        self._forget(ids)
                    self.model.update((i, note) for i in ids)
                else:
                    writer.flush_memtable()

    def compact(self) -> None:
        """Whole, or one small round of it."""
        if self.chance.random() < 0.5:
            self.table.compact(policy=TIDY)
        else:
            one_round(claimed(self.table), CompactLimits(max_bytes=self.chance.randrange(1, 200)))

    def crash(self) -> None:
        """A compaction that dies at some step."""
        at = self.chance.choice(COMPACT_STEPS)

        def pause(step: str) -> None:
            if step == at:
                raise Crash(step)

        with suppress(Crash):
            with watching(pause):
                one_round(claimed(self.table), CompactLimits(max_bytes=self.chance.randrange(1, 400)))

    def tidy(self) -> None:
        """Everything is flushed and taken in."""
        self.table.flush()
        self.table.compact(policy=TIDY)
        assert in_base(self.table) == sorted(self.model.elements()), self.told

    def collect(self) -> None:
        """Nothing else runs, so that no age is waited for."""
        self.table.collect_garbage(min_age=AT_ONCE, apply=True)

    def pin(self) -> None:
        """A checkpoint, which stays readable whatever comes; the one before is dropped."""
        if self.pinned is not None:
            self.table.drop_checkpoint(self.pinned[0])
        self.pinned = (self.table.checkpoint().name, self.model.copy())

    def native(self) -> None:
        """Somebody tidies the base without headgate."""
        lance.dataset(self.table.uri).optimize.compact_files()

    def _forget(self, ids: list[int]) -> None:
        for pair in [pair for pair in self.model if pair[0] in ids]:
            del self.model[pair]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_a_random_history_shows_what_its_model_shows(tmp_path: Path, kind: str, seed: int) -> None:
    History(tmp_path / "t", kind, seed).run(25)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(100, 160))
@pytest.mark.parametrize("kind", KINDS)
def test_long_random_histories_show_what_their_models_show(tmp_path: Path, kind: str, seed: int) -> None:
    History(tmp_path / "t", kind, seed).run(80)
