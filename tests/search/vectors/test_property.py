"""Searches by vector over random histories, against native's brute force over the rows that a scan shows."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from headgate.shards.vectors import Metric
from tests.search.query.histories import NATIVE_STEPS, STEPS
from tests.search.vectors.histories import Oracle, VectorHistory, check_hybrid, check_nearest, make_table

KINDS = list(product(get_args(Metric), [False, True]))


def _live(path: Path, seed: int, metric: Metric, half: bool, steps: int, queries: int, both: bool = False) -> None:
    chance = random.Random(seed)
    keyed, shards = chance.random() < 0.75, chance.choice([1, 1, 3])
    table = make_table(path / "t", metric, keyed=keyed, shards=shards, half=half, full_text="note" if both else ())
    history = VectorHistory(table, chance)
    try:
        with history.closing():
            for number in range(steps):
                history.step(chance.choice((*STEPS, *NATIVE_STEPS)))
                if number < steps - 1 and chance.random() >= 0.3:
                    continue
                if both:
                    check_hybrid(table, metric, chance, queries)
                else:
                    check_nearest(table, Oracle(table, metric), chance, queries)
    except AssertionError as error:
        raise AssertionError(
            f"{error}\nafter {history.log}\nreplay: _live(path, {seed}, {metric!r}, {half}, {steps}, {queries}, {both})"
        ) from error


@pytest.mark.parametrize(("seed", "metric", "half"), [(seed, *kind) for seed, kind in enumerate(KINDS)])
def test_the_nearest_are_those_of_native_s_brute_force_over_the_visible_rows(
    tmp_path: Path, seed: int, metric: Metric, half: bool
) -> None:
    """With every metric, numbers of 16 and 32 bits, nulls, zeros and NaN, with and without a filter."""
    _live(tmp_path, seed, metric, half, steps=16, queries=12)


@pytest.mark.parametrize(("seed", "metric"), list(enumerate(get_args(Metric))))
def test_words_and_vector_together_are_native_s_two_answers_fused(tmp_path: Path, seed: int, metric: Metric) -> None:
    """By ranks and weighted, with rows that only one of the two finds."""
    _live(tmp_path, seed, metric, half=False, steps=12, queries=8, both=True)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1000, 1150))
def test_the_same_over_many_histories(tmp_path: Path, seed: int) -> None:
    _live(tmp_path, seed, *KINDS[seed % len(KINDS)], steps=40, queries=12, both=seed % 3 == 0)
