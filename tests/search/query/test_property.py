"""Searches over random histories, against native pylance with one fresh index over the rows that a scan shows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.search.query.histories import NATIVE_STEPS, STEPS, History, Oracle, check_searches, make_table

ANALYZERS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "positions": {"with_position": True},
    "plain": {"with_position": True, "stem": False, "remove_stop_words": False, "ascii_folding": False},
    "german": {"with_position": True, "language": "German"},
    "ngram": {"base_tokenizer": "ngram", "min_ngram_length": 2, "max_ngram_length": 3},
    "code": {"base_tokenizer": "code", "split_identifiers": True, "preserve_original": True, "with_position": True},
    "unlimited": {"base_tokenizer": "whitespace", "max_token_length": None},
    "own stop words": {"custom_stop_words": ["red", "w3"]},
}


def _live(path: Path, seed: int, analyzer: str, steps: int, queries: int) -> None:
    chance = random.Random(seed)
    parameters = ANALYZERS[analyzer]
    table = make_table(path / "t", keyed=chance.random() < 0.75, shards=chance.choice([1, 1, 3]), parameters=parameters)
    history = History(table, chance)
    positions = bool(parameters and parameters.get("with_position"))
    try:
        with history.closing():
            for number in range(steps):
                history.step(chance.choice((*STEPS, *NATIVE_STEPS)))
                if number == steps - 1 or chance.random() < 0.3:
                    check_searches(table, Oracle(table, parameters), chance, queries, positions)
    except AssertionError as error:
        raise AssertionError(
            f"{error}\nafter {history.log}\nreplay: _live(path, {seed}, {analyzer!r}, {steps}, {queries})"
        ) from error


@pytest.mark.parametrize(("seed", "analyzer"), list(enumerate(ANALYZERS)))
def test_hits_and_scores_are_those_of_one_native_index_over_the_visible_rows(
    tmp_path: Path, seed: int, analyzer: str
) -> None:
    """At least 240 queries in all: single words, several with and without all, phrases, with and without a filter."""
    _live(tmp_path, seed, analyzer, steps=16, queries=30)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_the_same_over_many_histories(tmp_path: Path, seed: int) -> None:
    _live(tmp_path, seed, list(ANALYZERS)[seed % len(ANALYZERS)], steps=40, queries=20)
