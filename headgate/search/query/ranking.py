"""Ranks several parts as if they were one index: BM25 as native Lance computes it, with global statistics.

Promises:
1. Hits and scores are those of one native index over exactly the visible documents: hidden ones are neither found nor
   counted in the statistics.
2. The cost depends on the posting lists of the query's words and the hidden documents, not on the size of the parts.
3. With a limit, documents that cannot be among the best are not scored: each word's best documents bound all others.

On numpy arrays in native's own 32-bit arithmetic. Words at the same position are alternatives.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from headgate.caches import Cache
from headgate.connectors.lance.fts.index import Word
from headgate.connectors.lance.fts.partition import Partition
from headgate.connectors.lance.fts.postings import Numbers, Postings
from headgate.connectors.lance.rows import RowIds

Match: TypeAlias = Literal["any", "all", "phrase"]
"""Documents with any word, with every word, or with the words in this order."""

Scores: TypeAlias = npt.NDArray[np.float32]

K1, B = np.float32(1.2), np.float32(0.75)
"""Native Lance's values, which it does not let users change."""

_STRIPE = 64
"""Scores per stripe; the best of each stripe gives a lower bound for the hits."""

_TOP = 128
"""The best documents of a word that are known in advance. For a higher limit every document is scored."""

_SLACK = 1 - 1e-5
"""Bounds are lowered by this much: sums of 32-bit scores depend on their order."""

_ONE, _HALF = np.float32(1), np.float32(0.5)


@dataclass(frozen=True, eq=False)
class Documents:
    """A part, and the numbers of its hidden documents, ascending."""

    partition: Partition
    hidden: Numbers

    @property
    def count(self) -> int:
        """Number of visible documents."""
        return len(self.partition.rows) - len(self.hidden)

    @property
    def nbytes(self) -> int:
        """Bytes in memory besides the partition, after it was ranked."""
        return int(self.hidden.nbytes) + (len(self.partition.rows) if len(self.hidden) else 0)

    @cached_property
    def tokens(self) -> int:
        """Number of words in the visible documents."""
        return self.partition.tokens - int(self.partition.lengths[self.hidden].sum(dtype=np.int64))

    def postings(self, words: Sequence[str]) -> Mapping[str, Postings]:
        """The postings of the words, visible documents only."""
        found = self.partition.postings(words)
        return {word: self._shown(postings) for word, postings in zip(words, found, strict=True)}

    def _shown(self, postings: Postings) -> Postings:
        if not len(self.hidden):
            return postings
        shown = self._counts[postings.docs]
        return Postings(postings.docs[shown], postings.counts[shown])

    @cached_property
    def _counts(self) -> npt.NDArray[np.bool_]:
        """For each document, True if it is visible."""
        counts = np.ones(len(self.partition.rows), np.bool_)
        counts[self.hidden] = False
        return counts


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of all visible documents of all parts."""

    documents: int
    tokens: int
    having: Mapping[str, int]
    """Number of documents with a word."""

    def idf(self, word: str) -> np.float32:
        """The inverse document frequency of a word."""
        documents, having = np.float32(self.documents), np.float32(self.having[word])
        return np.float32(np.log((documents - having + _HALF) / (having + _HALF) + _ONE))

    def weights(self, counts: Numbers, lengths: Numbers) -> Scores:
        """BM25's factor of each document with the word `counts` times among `lengths` words."""
        average = np.float32(self.tokens) / np.float32(self.documents)
        norms = K1 * (_ONE - B + B * lengths.astype(np.float32) / average)
        frequencies = counts.astype(np.float32)
        return ((K1 + _ONE) * frequencies / (frequencies + norms)).astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Hits:
    """Rows, best first: the index of each row's part, its row id there, and its score."""

    parts: npt.NDArray[np.int64]
    rows: RowIds
    scores: Scores

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, places: npt.NDArray[np.int64]) -> Hits:
        """The hits at these indexes."""
        return Hits(self.parts[places], self.rows[places], self.scores[places])


@dataclass(frozen=True, eq=False)
class Found:
    """The matching documents of one part, ascending, and their scores."""

    partition: Partition
    docs: Numbers
    scores: Scores

    @property
    def rows(self) -> RowIds:
        """The row id of each document."""
        return self.partition.rows[self.docs]

    def take(self, places: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Found:
        """Some of them."""
        return Found(self.partition, self.docs[places], self.scores[places])


class Ranking:
    """All matching documents, part by part."""

    def __init__(self, found: Sequence[Found]) -> None:
        self._found = found

    def __len__(self) -> int:
        return sum(len(part.docs) for part in self._found)

    def only(self, allowed: Sequence[RowIds]) -> Ranking:
        """The documents of each part that are among its allowed rows."""
        pairs = zip(self._found, allowed, strict=True)
        return Ranking([part.take(np.isin(part.rows, rows)) for part, rows in pairs])

    def best(self, limit: int) -> Hits:
        """The best hits, in order. Of equal scores the earlier part and row comes first; which of them the limit cuts
        off is undefined.
        """
        kept = [part.take(_best_places(part.scores, limit)) for part in self._found]
        parts = np.repeat(np.arange(len(kept)), [len(part.docs) for part in kept])
        rows = np.concatenate([np.zeros(0, np.uint64), *(part.rows for part in kept)])
        scores = np.concatenate([np.zeros(0, np.float32), *(part.scores for part in kept)])
        order = np.lexsort((rows, parts, -scores))[:limit]
        return Hits(parts[order], rows[order], scores[order])


@dataclass(frozen=True, eq=False)
class Weighted:
    """The visible documents of one part with a word, ascending, and what the word adds to the score of each."""

    docs: Numbers
    added: Scores
    top: npt.NDArray[np.int64]
    """The places of those to which it adds most, in no order."""
    most: float

    @classmethod
    def of(cls, docs: Numbers, added: Scores) -> Weighted:
        return cls(docs, added, _best_places(added, _TOP), float(added.max(initial=0)))

    def at(self, docs: Numbers) -> Scores:
        """What the word adds to each of these documents."""
        if not len(self.docs):
            return np.zeros(len(docs), np.float32)
        places = np.minimum(np.searchsorted(self.docs, docs), len(self.docs) - 1)
        return np.where(self.docs[places] == docs, self.added[places], np.float32(0))


_weighted: Cache[tuple[Weighted, ...]] = Cache(
    "word_weights", lambda found: 100 + sum(int(one.docs.nbytes + one.added.nbytes) + 1_200 for one in found)
)


class Corpus:
    """All parts at one instant. What a word adds to a score depends on nothing else in a query, so it is computed once
    and cached.
    """

    def __init__(self, parts: Sequence[Documents]) -> None:
        self.parts = tuple(parts)
        self._documents, self._tokens = sum(part.count for part in parts), sum(part.tokens for part in parts)
        self._serial = next(_serials)

    def weighted(self, words: Sequence[str]) -> dict[str, tuple[Weighted, ...]]:
        """For each word, what it adds in each part."""
        held = {word: _weighted.get((self._serial, word)) for word in words}
        missing = [word for word, one in held.items() if one is None]
        return {word: one for word, one in held.items() if one is not None} | (self._made(missing) if missing else {})

    def _made(self, words: Sequence[str]) -> dict[str, tuple[Weighted, ...]]:
        postings = [part.postings(words) for part in self.parts]
        having = {word: sum(len(found[word].docs) for found in postings) for word in words}
        statistics, made = Statistics(self._documents, self._tokens, having), {}
        for word in words:
            pairs = [(part.partition, found[word]) for part, found in zip(self.parts, postings, strict=True)]
            made[word] = tuple(Weighted.of(one.docs, _added(part, one, word, statistics)) for part, one in pairs)
            _weighted.put((self._serial, word), made[word])
        return made


_serials = itertools.count()


def rank(corpus: Corpus, words: Sequence[Word], match: Match, limit: int | None = None) -> Ranking:
    """Score every matching document; with a limit, at least those that may be among the best so many.

    1. in each part, find the visible documents of each word.
    2. compute the statistics over all parts.
    3. in each part, find the matching documents and score them with these statistics.
    """
    wanted = Counter(word.text for word in words)
    weighted = corpus.weighted(list(wanted))
    own = [{word: weighted[word][number] for word in wanted} for number in range(len(corpus.parts))]
    bounds = _bounds(own, wanted, limit) if match == "any" and limit is not None and limit <= _TOP else None
    ranked = []
    for part, found in zip(corpus.parts, own, strict=True):
        if match != "any":
            docs = _matching(part.partition, found, words, match)
            ranked.append(Found(part.partition, docs, _scores_of(docs, found, wanted)))
        else:
            ranked.append(_bounded(part.partition, found, wanted, bounds) or _scored(part.partition, found, wanted))
    return Ranking(ranked)


def _bounds(parts: Sequence[Mapping[str, Weighted]], wanted: Mapping[str, int], limit: int) -> dict[str, float] | None:
    """Words of which each of the best documents has one, with the least that the word adds to such a document. None if
    there are too few documents to tell.

    1. score the documents that are best by a single word: the last of the best of these has the least score to reach.
    2. leave out words that cannot reach it together. A document of the others reaches it only if the word adds what
       all others together lack.
    """
    known = [_scores_of(np.unique(_tops(found)), found, wanted) for found in parts]
    scores = np.concatenate([np.zeros(0, np.float32), *known])
    if len(scores) < limit:
        return None
    least = float(np.partition(scores, -limit)[-limit]) * _SLACK
    most = {word: times * max((found[word].most for found in parts), default=0.0) for word, times in wanted.items()}
    total, left_out = sum(most.values()), 0.0
    bounds = {}
    for word in sorted(most, key=most.__getitem__):
        left_out += most[word]
        if left_out >= least:
            bounds[word] = (least - (total - most[word])) / wanted[word]
    return bounds


def _tops(found: Mapping[str, Weighted]) -> Numbers:
    return np.concatenate([np.zeros(0, np.uint32), *(one.docs[one.top] for one in found.values())])


def _bounded(
    partition: Partition, found: Mapping[str, Weighted], wanted: Mapping[str, int], bounds: Mapping[str, float] | None
) -> Found | None:
    """The documents of these words that one of them adds enough to. None if that is hardly faster than to score all."""
    if bounds is None:
        return None
    docs = [found[word].docs[found[word].added >= bound] for word, bound in bounds.items()]
    if _is_dense(sum(map(len, docs)), len(partition.rows)):
        return None
    having = _union(docs)
    return Found(partition, having, _scores_of(having, found, wanted))


def _scores_of(docs: Numbers, found: Mapping[str, Weighted], wanted: Mapping[str, int]) -> Scores:
    scores = np.zeros(len(docs), np.float32)
    for word, times in wanted.items():
        added = found[word].at(docs)
        for _ in range(times):
            scores += added
    return scores


def _scored(partition: Partition, found: Mapping[str, Weighted], wanted: Mapping[str, int]) -> Found:
    """Every document with any of the words."""
    docs = [found[word].docs for word in wanted]
    if len(docs) == 1:
        ((word, times),) = wanted.items()
        added = found[word].added
        return Found(partition, docs[0], added if times == 1 else np.float32(times) * added)
    if _is_dense(sum(map(len, docs)), len(partition.rows)):
        scores = np.zeros(len(partition.rows), np.float32)
        for word, times in wanted.items():
            _add(scores, found[word].docs, times, found[word].added)
        having = np.flatnonzero(scores > 0).astype(np.uint32)
        return Found(partition, having, scores[having])
    having = _union(docs)
    scores = np.zeros(len(having), np.float32)
    for word, times in wanted.items():
        places = np.searchsorted(having, found[word].docs)
        _add(scores, places, times, found[word].added)
    return Found(partition, having, scores)


def _is_dense(having: int, documents: int) -> bool:
    """True if it is faster to keep a score for every document of a part than only for those with a word."""
    return having * 16 > documents


def _added(partition: Partition, postings: Postings, word: str, statistics: Statistics) -> Scores:
    if not len(postings.docs):
        return np.zeros(0, np.float32)
    return statistics.idf(word) * statistics.weights(postings.counts, partition.lengths[postings.docs])


def _add(scores: Scores, places: npt.NDArray[Any], times: int, added: Scores) -> None:
    for _ in range(times):
        scores[places] += added


def _matching(partition: Partition, found: Mapping[str, Weighted], words: Sequence[Word], match: Match) -> Numbers:
    """The matching documents, ascending."""
    places: dict[int, list[str]] = {}
    for word in words:
        places.setdefault(word.position, []).append(word.text)
    groups = [_union([found[word].docs for word in dict.fromkeys(group)]) for group in places.values()]
    if match == "any" or not groups:
        return _union(groups)
    docs = reduce(lambda one, two: np.intersect1d(one, two, assume_unique=True), groups)
    if match == "all" or len(groups) == 1 or not len(docs):
        return docs
    return _in_order(partition, places, docs)


def _in_order(partition: Partition, places: Mapping[int, Sequence[str]], docs: Numbers) -> Numbers:
    """The documents that contain the query's words in its order: for some start, a word of each place is at its
    distance from the start."""
    starts: npt.NDArray[np.int64] | None = None
    first = min(places)
    for place, group in places.items():
        found = []
        for word in dict.fromkeys(group):
            having, positions = partition.positions(word, docs)
            start = positions.astype(np.int64) - (place - first)
            found.append((having.astype(np.int64)[start >= 0] << 32) | start[start >= 0])
        here = np.unique(np.concatenate(found))
        starts = here if starts is None else np.intersect1d(starts, here, assume_unique=True)
    assert starts is not None
    return np.unique(starts >> 32).astype(np.uint32)


def _union(docs: Sequence[Numbers]) -> Numbers:
    if len(docs) == 1:
        return docs[0]
    # A stable sort merges runs that are already sorted.
    merged = np.sort(np.concatenate([np.zeros(0, np.uint32), *docs]), kind="stable")
    return merged[np.append(True, merged[1:] != merged[:-1])] if len(merged) else merged


def _best_places(scores: Scores, limit: int) -> npt.NDArray[np.int64]:
    """The indexes of the best scores, in no order."""
    if len(scores) > _STRIPE * limit:
        # The limit-th best of the stripes' maxima is never above the limit-th best of all scores.
        stripes = scores[: len(scores) // _STRIPE * _STRIPE].reshape(-1, _STRIPE).max(axis=1)
        enough = np.partition(stripes, -limit)[-limit]
        places = np.flatnonzero(scores >= enough)
        return places[_best_places(scores[places], limit)] if len(places) < len(scores) else _cut(scores, limit)
    return _cut(scores, limit)


def _cut(scores: Scores, limit: int) -> npt.NDArray[np.int64]:
    if len(scores) <= limit:
        return np.arange(len(scores))
    return np.argpartition(-scores, limit - 1)[:limit]
