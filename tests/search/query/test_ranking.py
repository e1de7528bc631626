"""The pure parts of a search: statistics, what is cut, segments, keys that are looked up, what is highlighted."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from headgate.connectors.lance.fts.index import Word, index_texts
from headgate.connectors.lance.fts.postings import Postings
from headgate.search.query import tail_index
from headgate.search.query.highlight import highlighted
from headgate.search.query.ranking import Corpus, Documents, Found, Match, Ranking, Statistics, rank
from headgate.search.query.superseded import looks_up
from headgate.search.query.tail_index import TextBlock, segment_bounds
from headgate.shards.rows.chunks import identity_of

PLAIN = {"base_tokenizer": "simple", "stem": False, "remove_stop_words": False, "with_position": True}


def _part(texts: list[str], hidden: list[int], first: int = 0) -> Documents:
    (partition,) = index_texts(pa.chunked_array([texts]), PLAIN).partitions
    partition = partition.with_rows(partition.rows + np.uint64(first))
    return Documents(partition, partition.documents(np.array(hidden, np.uint64) + np.uint64(first)))


def _words(text: str) -> list[Word]:
    return [Word(word, place) for place, word in enumerate(text.split())]


def _by_hand(texts: list[str], words: list[str], match: Match) -> dict[int, float]:
    """BM25 over one list of texts, in plain words."""
    cut = [text.split() for text in texts]
    average = sum(map(len, cut)) / len(cut)
    found = {}
    for row, doc in enumerate(cut):
        score = 0.0
        for word in words:
            having = sum(word in other for other in cut)
            idf = math.log(1 + (len(cut) - having + 0.5) / (having + 0.5))
            count = doc.count(word)
            score += idf * 2.2 * count / (count + 1.2 * (0.25 + 0.75 * len(doc) / average))
        phrase = any(doc[at : at + len(words)] == words for at in range(len(doc)))
        if {"any": score > 0, "all": set(words) <= set(doc), "phrase": phrase}[match]:
            found[row] = score
    return found


@pytest.mark.parametrize("match", ["any", "all", "phrase"])
@pytest.mark.parametrize("seed", range(4))
def test_parts_with_hidden_documents_are_ranked_as_one_list_of_the_others(seed: int, match: Match) -> None:
    """Replay with the seed in the name of the test."""
    chance = random.Random(seed)
    parts, shown, rows = [], [], []
    for number in range(chance.randint(1, 4)):
        texts = [" ".join(chance.choices("abcdefgh", k=chance.randint(1, 9))) for _ in range(chance.randint(1, 300))]
        hidden = sorted(chance.sample(range(len(texts)), chance.randint(0, len(texts) // 2)))
        parts.append(_part(texts, hidden, first=1000 * number))
        kept = [row for row in range(len(texts)) if row not in hidden]
        shown += [texts[row] for row in kept]
        rows += [1000 * number + row for row in kept]
    for size in (1, 2, 3):
        words = chance.choices("abcdefghz", k=size)
        expected = {rows[at]: score for at, score in _by_hand(shown, words, match).items()}
        ranking = rank(Corpus(parts), _words(" ".join(words)), match)
        hits = ranking.best(10_000)
        assert len(ranking) == len(hits) == len(expected)
        assert dict(zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)
        assert (np.diff(hits.scores) <= 0).all()
        assert (hits.parts == hits.rows // 1000).all()


def test_what_a_word_adds_is_computed_once_an_instant() -> None:
    parts = [_part(["a b", "b", "a a"], [1]), _part(["a"], [], first=10)]
    corpus, later = Corpus(parts), Corpus([*parts, _part(["b"], [], first=20)])
    first = corpus.weighted(["a", "b"])
    assert corpus.weighted(["b"])["b"] is first["b"]
    assert [one.docs.tolist() for one in first["a"]] == [[0, 2], [0]]
    assert later.weighted(["a"])["a"][0].added[0] > first["a"][0].added[0], "a is rarer where there are more documents"


@pytest.mark.parametrize("seed", range(6))
def test_with_a_limit_the_best_have_the_scores_that_they_have_without_one(seed: int) -> None:
    """Replay with the seed in the name of the test."""
    chance = random.Random(seed)
    letters, weights = "abcdefgh", [1 / (4**place) for place in range(8)]
    parts = []
    for number in range(chance.randint(1, 4)):
        size = chance.choice([3, 200, 5_000])
        texts = [" ".join(chance.choices(letters, weights, k=chance.randint(1, 9))) for _ in range(size)]
        hidden = chance.sample(range(size), chance.choice([0, size // 2]))
        parts.append(_part(texts, sorted(hidden), first=10_000 * number))
    corpus = Corpus(parts)
    for words in (["a"], ["a", "h"], ["h", "g"], ["a", "b"], ["b", "e", "b"], ["z", "c"], ["a", "d", "f", "h"]):
        hits = rank(corpus, _words(" ".join(words)), "any").best(100_000)
        scores = dict(zip(hits.rows.tolist(), hits.scores.tolist(), strict=True))
        for limit in (1, 10, 128, 129):
            best = rank(corpus, _words(" ".join(words)), "any", limit).best(limit)
            assert best.scores.tolist() == hits.scores.tolist()[:limit], (words, limit)
            assert [scores[row] for row in best.rows.tolist()] == best.scores.tolist()
            assert len(set(best.rows.tolist())) == len(best)


def test_a_limit_spares_the_documents_that_cannot_be_among_the_best() -> None:
    corpus = Corpus([_part(["a b"] * 20 + ["a"] * 20_000, [])])
    ranking = rank(corpus, _words("a b"), "any", 10)
    assert len(ranking) == 20
    assert ranking.best(10).rows.tolist() == rank(corpus, _words("a b"), "any").best(10).rows.tolist()


def test_nothing_is_found_where_nothing_counts() -> None:
    assert len(rank(Corpus([]), _words("a"), "any").best(3)) == 0
    assert len(rank(Corpus([_part(["a b"], [0])]), _words("a"), "any").best(3)) == 0
    assert len(rank(Corpus([_part(["a b"], [])]), [], "any").best(3)) == 0
    assert len(rank(Corpus([_part(["a b"], [])]), [], "phrase").best(3)) == 0


def test_words_at_one_position_stand_for_each_other() -> None:
    parts = [_part(["big cat", "large cat", "huge cat", "cat big"], [])]
    either = [Word("big", 0), Word("large", 0), Word("cat", 1)]
    assert sorted(rank(Corpus(parts), either, "all").best(9).rows.tolist()) == [0, 1, 3]
    assert sorted(rank(Corpus(parts), either, "phrase").best(9).rows.tolist()) == [0, 1]


@pytest.mark.parametrize("limit", [1, 3, 10, 500])
@pytest.mark.parametrize("kind", ["all equal", "few values", "all different"])
def test_the_best_are_the_best_however_many_are_equal(limit: int, kind: str) -> None:
    random_ = np.random.default_rng(limit)
    values = {"all equal": 1, "few values": 5, "all different": 1 << 30}[kind]
    (partition,) = index_texts(pa.chunked_array([["a"] * 5_000]), PLAIN).partitions
    for size in (1, limit, 64 * limit, 5_000):
        size = min(size, 5_000)
        scores = random_.integers(1, values + 1, size).astype(np.float32)
        hits = Ranking([Found(partition, np.arange(size, dtype=np.uint32), scores)]).best(limit)
        assert hits.scores.tolist() == sorted(scores.tolist(), reverse=True)[:limit]
        assert (scores[hits.rows.astype(int)] == hits.scores).all()


def test_allowed_rows_are_those_that_stay() -> None:
    ranking = rank(Corpus([_part(["a", "a a", "a b"], []), _part(["a"], [], first=10)]), _words("a"), "any")
    left = ranking.only([np.array([2, 10], np.uint64), np.array([10], np.uint64)])
    assert sorted(left.best(9).rows.tolist()) == [2, 10]


def test_a_word_that_nobody_has_weighs_and_adds_nothing() -> None:
    statistics = Statistics(documents=10, tokens=30, having={"a": 0, "b": 10})
    assert statistics.idf("a") > statistics.idf("b") > 0
    assert len(statistics.weights(Postings(*[np.zeros(0, np.uint32)] * 2).counts, np.zeros(0, np.uint32))) == 0


# -- segments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "limit", "segments"),
    [
        ([], 100, []),
        ([5], 100, [(0, 1)]),
        ([5, 5], 100, [(0, 2)]),
        ([5, 5, 5], 100, [(0, 2), (2, 3)]),
        ([5] * 8, 100, [(0, 8)]),
        ([5] * 7, 100, [(0, 4), (4, 6), (6, 7)]),
        ([5] * 8, 20, [(0, 4), (4, 8)]),
        ([200, 1, 1], 100, [(0, 1), (1, 3)]),
        ([200, 200], 100, [(0, 1), (1, 2)]),
    ],
)
def test_neighbours_are_joined_like_a_binary_counter(
    sizes: list[int], limit: int, segments: list[tuple[int, int]]
) -> None:
    assert segment_bounds(sizes, limit) == segments


def test_rows_that_are_added_are_indexed_a_few_times_and_make_few_runs() -> None:
    chance = random.Random(1)
    sizes = [chance.choice([1, 10, 500]) for _ in range(700)]
    made: set[tuple[int, int]] = set()
    indexed = 0
    for count in range(1, len(sizes) + 1):
        segments = segment_bounds(sizes[:count], 5_000)
        assert [start for start, _ in segments] == [0, *(stop for _, stop in segments[:-1])]
        assert len(segments) <= 2 * sum(sizes[:count]) / 5_000 + 2 * math.log2(count) + 2
        indexed += sum(sum(sizes[start:stop]) for start, stop in set(segments) - made)
        made |= set(segments)
    assert indexed <= sum(sizes) * (2 + math.log2(5_000 / min(sizes)))


@pytest.mark.parametrize("sizes", [[40], [7, 95, 3], [250], [120, 30, 30, 30, 250, 1]])
def test_long_stretches_are_cut_and_all_are_indexed_at_once_with_the_same_words(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch, cache_budget: Callable[[int], None]
) -> None:
    monkeypatch.setattr(tail_index, "SEGMENT_ROWS", 100)
    cache_budget(0)
    cache_budget(1 << 30)
    texts = [f"w{number % 13} w{number % 7} common" for number in range(sum(sizes))]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    reads = []

    def read(start: int, size: int) -> list[pa.Array]:
        reads.append(start)
        return [pa.array(texts[start : start + size])]

    blocks = [
        TextBlock(b"%d" % start, size, partial(read, start, size)) for start, size in zip(starts, sizes, strict=True)
    ]
    segments = list(tail_index.tail_segments(blocks, PLAIN))
    assert sorted(reads) == starts, "each is read once"
    assert [segment.first for segment in segments] == [
        sum(one.rows for one in segments[:place]) for place in range(len(segments))
    ]
    assert sum(segment.rows for segment in segments) == len(texts)
    assert max(segment.rows for segment in segments) <= 100
    for segment in segments:
        rows = np.concatenate([partition.rows for partition in segment.index.partitions])
        assert sorted(rows.tolist()) == list(range(segment.rows))
    assert [segment.index for segment in tail_index.tail_segments(blocks, PLAIN)] == [
        segment.index for segment in segments
    ]
    assert sorted(reads) == starts, "what is held is not read again"


def test_equal_texts_have_one_identity_and_others_another() -> None:
    one, same = pa.array(["a", None, "bc"]), pa.array(["a", None, "bc"])
    others = [["a", "", "bc"], ["a", None, "bd"], ["a", None], ["ab", None, "c"], [None, "a", "bc"]]
    assert identity_of([one]) == identity_of([same])
    assert len({identity_of([pa.array(values, pa.string())]) for values in others} | {identity_of([one])}) == 6
    assert identity_of([one.cast(pa.large_string())]) != identity_of([one])
    assert identity_of([one.slice(1)]) != identity_of([one])


# -- keys ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "rows", "indexed", "expected"),
    [(1, 1_000_000, True, True), (1, 1_000_000, False, False), (100_000, 1_000_000, True, False), (1, 10, True, False)],
)
def test_keys_are_looked_up_where_there_is_an_index_and_they_are_few(
    keys: int, rows: int, indexed: bool, expected: bool
) -> None:
    assert looks_up(keys, rows, indexed) is expected


# -- highlighting -------------------------------------------------------------------------------


def _stems(text: str) -> list[str]:
    return [word.removesuffix("s").removesuffix("ing").lower() for word in text.replace("_", " ").split()]


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("Gates are closing", ["gate", "clos"], [("Gates", True), (" are ", False), ("closing", True)]),
        ("nothing", ["gate"], [("nothing", False)]),
        ("", ["gate"], []),
        ("gate, gate!", ["gate"], [("gate", True), (", ", False), ("gate", True), ("!", False)]),
        ("big_gates here", ["gate"], [("big_", False), ("gates", True), (" here", False)]),
    ],
)
def test_words_that_the_index_makes_equal_are_highlighted(
    text: str, wanted: list[str], expected: list[tuple[str, bool]]
) -> None:
    assert highlighted(text, wanted, _stems) == expected


def test_substrings_are_highlighted_where_an_index_has_substrings() -> None:
    def grams(text: str) -> list[str]:
        return [text[at : at + 3].lower() for at in range(len(text) - 2)]

    pieces = highlighted("Floodgates", ["gat", "ate"], grams)
    assert pieces == [("Flood", False), ("gate", True), ("s", False)]
