"""Native's index files as they are read here: every word, count, length and position is that of the texts."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from headgate.connectors.lance.fts import index as full_text
from headgate.connectors.lance.fts.fst import TokenMap
from headgate.connectors.lance.fts.index import Word, index_texts, open_index, query_words, segments
from headgate.connectors.lance.fts.partition import POSITIONS, POSTINGS
from headgate.connectors.lance.fts.postings import BLOCK, decode_positions, decode_postings, varints
from headgate.connectors.objects import open_store
from headgate.errors import Corrupt, DataLoss, InvalidInput
from tests.search.query.histories import INDEX

LETTERS = "te/oasripcnw.hlm-du012g=:bf3y5&_4v9678k%?xCDASFIBEjPTzRNM+LOqHGßéж漢😀~#QXZ"
PARAMETERS: dict[str, dict[str, Any]] = {
    "default": {},
    "positions": {"with_position": True},
    "raw words": {"base_tokenizer": "whitespace", "stem": False, "lower_case": False, "max_token_length": None}
    | {"remove_stop_words": False, "ascii_folding": False, "with_position": True},
    "code": {"base_tokenizer": "code", "split_identifiers": True, "preserve_original": True, "with_position": True},
    "own stop words": {"custom_stop_words": ["common", "w3"]},
    "ngram": {"base_tokenizer": "ngram", "min_ngram_length": 3, "max_ngram_length": 3},
}


def _texts(chance: random.Random, count: int) -> list[str | None]:
    """A word that nearly all have, some that hundreds have, and many of odd letters. None begins with a stop word."""
    odd = ["".join(chance.choices(LETTERS, k=chance.randint(1, 9))) for _ in range(100)]
    pool = ["common", "common", *(f"w{number}" for number in range(5)), "fooBar", "the", *odd]
    made = [" ".join(chance.choices(pool[:9] if chance.random() < 0.8 else pool, k=9)) for _ in range(count)]
    return [*(f"first {text}" for text in made), None, "", "...", "first " + "common " * 400]


def _stored(path: Path, texts: list[str | None], **parameters: Any) -> tuple[str, dict[str, str]]:
    dataset = lance.write_dataset(pa.table({"t": texts}), str(path), max_rows_per_file=200)
    dataset.create_scalar_index("t", "INVERTED", name=INDEX, **parameters)
    (segment,) = segments(dataset, open_store(str(path)), "", INDEX)
    return segment.uri, dict(segment.options)


def _tokens(text: str | None, parameters: dict[str, Any]) -> list[Word]:
    """Each word as often as native finds it."""
    known = {name: value for name, value in parameters.items() if name in full_text._ANALYZER}
    return [Word(token.text, token.position) for token in lance.tokenize(text or "", **known)]


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_is_read_of_an_index_is_what_native_cuts_the_texts_into(tmp_path: Path, name: str) -> None:
    texts = _texts(random.Random(name), 420)
    stored = open_index(*_stored(tmp_path / "d", texts, **PARAMETERS[name]))
    in_memory = index_texts(pa.chunked_array([texts[:7], texts[7:]]), stored.parameters)
    assert in_memory.parameters == stored.parameters
    cut = [_tokens(text, dict(stored.parameters)) for text in texts]
    vocabulary = sorted({word.text for words in cut for word in words})
    for index, in_fragment in ((stored, 200), (in_memory, 1 << 31)):
        (partition,) = index.partitions
        rows = [int(row >> 32) * in_fragment + int(row & 0xFFFF_FFFF) for row in partition.rows.tolist()]
        assert rows == [row for row, words in enumerate(cut) if words]
        documents = [cut[row] for row in rows]
        assert partition.lengths.tolist() == [len(words) for words in documents]
        assert partition.words.count == len(vocabulary)
        assert max(len(found.docs) for found in partition.postings(vocabulary)) > 2 * BLOCK
        places: dict[str, dict[int, list[int]]] = {word: {} for word in vocabulary}
        for doc, words in enumerate(documents):
            for word in words:
                places[word.text].setdefault(doc, []).append(word.position)
        for text, found in zip(vocabulary, partition.postings(vocabulary), strict=True):
            expected = {doc: len(positions) for doc, positions in places[text].items()}
            assert dict(zip(found.docs.tolist(), found.counts.tolist(), strict=True)) == expected, text
            if partition.has_positions:
                some = found.docs[::3]
                pairs = zip(*(array.tolist() for array in partition.positions(text, some)), strict=True)
                assert list(pairs) == [(doc, at) for doc in some.tolist() for at in places[text][doc]], text
        assert [len(found.docs) for found in partition.postings(["nowhere", "", "firs", "firsts"])] == [0] * 4


def test_a_query_has_the_words_that_native_makes_of_it() -> None:
    given = {"base_tokenizer": "simple", "stem": True, "remove_stop_words": True, "lower_case": True}
    assert query_words("The running of the Apples", given) == (Word("run", 0), Word("appl", 3))
    assert query_words("red red", given) == (Word("red", 0), Word("red", 1))
    grams = {"base_tokenizer": "ngram", "min_ngram_length": 3, "max_ngram_length": 3, "stem": False}
    # All at one position, where each counts once.
    assert [word.text for word in query_words("aaaa", grams)] == ["aaa"]


def test_a_column_without_a_single_word_is_an_index_without_parts(tmp_path: Path) -> None:
    index = open_index(*_stored(tmp_path / "d", [None, "", "the"]))
    assert sum(len(partition.rows) for partition in index.partitions) == 0
    made = index_texts(pa.chunked_array([pa.array([None, ""], pa.string())]), index.parameters)
    assert sum(nbytes for _, nbytes in made.memory) < 1000


def test_an_index_that_is_stored_in_an_unknown_way_is_refused(tmp_path: Path) -> None:
    """A canary too: when blocks of 256 can be read, or are the default, this code must learn them."""
    with pytest.raises(InvalidInput, match="not supported by this release"):
        open_index(*_stored(tmp_path / "d", ["red"] * 300, block_size=256))


@pytest.mark.parametrize("name", ["metadata.lance", "part_0_docs.lance", "part_0_tokens.lance"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_a_file_that_is_missing_or_torn_is_data_loss(tmp_path: Path, name: str, damage: str) -> None:
    uri, options = _stored(tmp_path / "d", ["red apple"] * 300)
    file = Path(uri) / name
    data = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(data[: len(data) // 2 if damage == "cut" else 0])
    with pytest.raises(DataLoss):
        open_index(uri, options)


def test_postings_that_are_gone_are_data_loss(tmp_path: Path) -> None:
    uri, options = _stored(tmp_path / "d", ["red apple"] * 300)
    (Path(uri) / "part_0_invert.lance").unlink()
    (partition,) = open_index(uri, options).partitions
    with pytest.raises(DataLoss):
        partition.postings(["red"])


# -- damaged bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_damaged_bytes_are_corrupt_or_other_numbers_and_nothing_else(tmp_path: Path, seed: int) -> None:
    """Replay with the seed in the name of the test."""
    chance = random.Random(seed)
    uri, options = _stored(tmp_path / "d", _texts(chance, 300), with_position=True)
    (partition,) = open_index(uri, options).partitions
    rows = partition.posting_rows.rows([partition.words.get("common") or 0], POSTINGS + POSITIONS)
    blocks, length = rows.column(0)[0].values, rows.column(1)[0].as_py()
    counts = decode_postings(blocks, length).counts
    starts = np.asarray(rows.column(3)[0].as_py(), np.int64)
    words = partition.words._data
    for _ in range(300):
        torn = [_damaged(chance, block) for block in blocks.to_pylist()]
        _only_corrupt(lambda torn=torn: decode_postings(pa.array(torn, pa.large_binary()), length))
        stream = np.frombuffer(_damaged(chance, rows.column(2)[0].as_py()), np.uint8)
        _only_corrupt(lambda stream=stream: decode_positions(stream, starts, counts, np.arange(len(starts))))
        data = _damaged(chance, words)
        _only_corrupt(lambda data=data: TokenMap(data).get("common"))
    for given in (b"", b"\x80", b"\xff" * 6 + b"\x01"):
        _only_corrupt(lambda given=given: varints(np.frombuffer(given, np.uint8)))
    with pytest.raises(Corrupt):
        decode_postings(blocks, length + BLOCK)
    with pytest.raises(Corrupt):
        TokenMap(b"not a word list, however long it may be")


def _damaged(chance: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged[: chance.randrange(len(damaged))] if chance.random() < 0.3 else damaged)


def _only_corrupt(act: Any) -> None:
    with suppress(Corrupt):
        act()
