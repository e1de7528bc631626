"""Opens a native full-text index: its words, its documents, and native's tokenizer.

This reads the files of an index directly. Native's own search returns neither the number of documents with a word nor
their lengths, and without these several indexes cannot be scored as one. Rows that no index covers are indexed by
native in a temporary folder, which is deleted once the index is in memory.

pylance is imported when a function is called, never before (fork safety).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headgate import parallel
from headgate.connectors.lance.errors import reading
from headgate.connectors.lance.fts.fst import TokenMap
from headgate.connectors.lance.fts.partition import Partition, StoredPostings, open_file, read_file
from headgate.connectors.lance.fts.postings import BLOCK
from headgate.connectors.objects import ObjectStore, without_secrets
from headgate.errors import Corrupt, InvalidInput, StoreError

TEXT = "text"
"""The only column of datasets in a temporary folder."""


_FORMATS = ("2", "3")
_ANALYZER = (
    "base_tokenizer",
    "language",
    "max_token_length",
    "lower_case",
    "stem",
    "remove_stop_words",
    "custom_stop_words",
    "ascii_folding",
    "min_ngram_length",
    "max_ngram_length",
    "prefix_only",
    "split_identifiers",
    "split_on_numerics",
    "preserve_original",
    "index_operators",
)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a query, as the index spells it. Words at the same position are alternatives."""

    text: str
    position: int


@dataclass(frozen=True)
class Segment:
    """A finished index folder, and the fragments of its dataset that it covers."""

    uri: str
    options: Mapping[str, str] = field(repr=False)
    fragments: frozenset[int]


@dataclass(frozen=True)
class OpenIndex:
    """An index folder, opened."""

    parameters: Mapping[str, Any]
    """The parameters for `create_scalar_index`; complete, unlike a dataset's description, which omits stop words."""
    partitions: tuple[Partition, ...]

    @property
    def memory(self) -> Iterator[tuple[object, int]]:
        """Bytes in memory, by object."""
        return (one for partition in self.partitions for one in partition.memory)


def segments(dataset: Any, store: ObjectStore, key: str, name: str) -> tuple[Segment, ...]:
    """The folders of a dataset's index. The dataset is at `key` of the store; a shallow clone's may be elsewhere."""
    (index,) = (found for found in dataset.describe_indices() if found.name == name)
    result = []
    for segment in index.segments:
        folder = f"_indices/{segment.uuid}"
        uri, options = store.locate(f"{key}/{folder}" if key else folder)
        if segment.base_id is not None:
            uri = f"{dataset._ds.base_paths()[segment.base_id].path.rstrip('/')}/{folder}"
        result.append(Segment(uri, options, frozenset(segment.fragment_ids)))
    return tuple(result)


def own_stop_words(dataset: Any, store: ObjectStore, name: str) -> Mapping[str, Any]:
    """The custom stop words of an index, as a parameter; empty if it has none.

    A dataset's description omits them, and segments built without them would not fit this index. Raises DataLoss if a
    segment's marker is missing.
    """
    for segment in segments(dataset, store, "", name)[:1]:
        marker = open_file(f"{segment.uri}/metadata.lance", segment.options, None).metadata().schema.metadata or {}
        words = json.loads(marker.get(b"params", b"{}")).get("custom_stop_words")
        return {} if words is None else {"custom_stop_words": words}
    return {}


def open_index(uri: str, options: Mapping[str, str]) -> OpenIndex:
    """Read an index folder except its posting lists. Raises DataLoss, Corrupt, InvalidInput for an unknown format."""
    marker = open_file(f"{uri}/metadata.lance", options, None).metadata().schema.metadata or {}
    parameters = _checked_parameters(uri, marker)
    numbers = json.loads(marker[b"partitions"])
    opened = parallel.each("search", lambda number: _partition(f"{uri}/part_{number}", options, parameters), numbers)
    return OpenIndex(parameters, tuple(opened))


def index_texts(texts: pa.ChunkedArray, parameters: Mapping[str, Any]) -> OpenIndex:
    """Let native index texts with the parameters of a stored index; rows are numbered from 0 on.

    On return the index is in memory, and nothing is left on disk. Raises StoreError.
    """
    import lance

    with tempfile.TemporaryDirectory(prefix="headgate-search-") as folder:
        rows = pa.table([texts], names=[TEXT])
        try:
            dataset = lance.write_dataset(rows, folder, max_rows_per_file=max(len(texts), 1))
            dataset.create_scalar_index(TEXT, "INVERTED", name=TEXT, **parameters)
        except OSError as error:
            what = f"Indexing {len(texts)} fresh rows failed."
            raise StoreError(
                what, folder=folder, advice="check the free space of the temporary directory"
            ) from without_secrets(error)
        ((segment,),) = (index.segments for index in dataset.describe_indices())
        stored = open_index(f"{folder}/_indices/{segment.uuid}", {})
        return replace(stored, partitions=tuple(partition.in_memory() for partition in stored.partitions))


def best_matches(dataset: Any, text: str, column: str, match: str, columns: Sequence[str], limit: int) -> pa.Table:
    """Native's own search: rows with `_score`, best first. Use it only if native's statistics are the right ones."""
    from lance.query import FullTextOperator, MatchQuery, PhraseQuery

    query: Any
    if match == "phrase":
        query = PhraseQuery(text, column)
    else:
        operator = FullTextOperator.AND if match == "all" else FullTextOperator.OR
        query = MatchQuery(text, column, operator=operator)
    with reading("Reading a full-text index failed.", uri=dataset.uri):
        return dataset.scanner(columns=[*columns, "_score"], full_text_query=query, limit=limit).to_table()


def query_words(text: str, parameters: Mapping[str, Any]) -> tuple[Word, ...]:
    """The words of a text as the index tokenizes it: stemmed, folded, without stop words, as configured.

    A word counts once per position.
    """
    import lance

    tokens = lance.tokenize(text, **{name: parameters[name] for name in _ANALYZER if name in parameters})
    return tuple(dict.fromkeys(Word(token.text, token.position) for token in tokens))


def _partition(stem: str, options: Mapping[str, str], parameters: Mapping[str, Any]) -> Partition:
    docs = read_file(f"{stem}_docs.lance", options)
    words = read_file(f"{stem}_tokens.lance", options)
    return Partition(
        rows=docs.column("_rowid").to_numpy(),
        lengths=docs.column("_num_tokens").to_numpy(),
        words=TokenMap(words.column("_token_fst_bytes")[0].as_py()),
        posting_rows=StoredPostings(f"{stem}_invert.lance", options),
        has_positions=bool(parameters["with_position"]),
    )


def _checked_parameters(uri: str, marker: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    """The index's parameters. Raises InvalidInput for an unknown format, Corrupt if the parameters are missing."""
    known = (
        marker.get(b"format_version", b"1").decode() in _FORMATS
        and marker.get(b"token_set_format") == b"fst"
        and marker.get(b"posting_block_size", b"128").decode() == str(BLOCK)
        and marker.get(b"posting_tail_codec") == b"varint_delta_v1"
        and marker.get(b"positions_codec", b"packed_delta_v1") == b"packed_delta_v1"
        and marker.get(b"positions_layout", b"shared_stream_v2") == b"shared_stream_v2"
    )
    try:
        parameters = json.loads(marker[b"params"])
    except (KeyError, ValueError):
        raise Corrupt("A full-text index has no parameters.", index=uri) from None
    if not known or parameters.get("lance_tokenizer") not in (None, "text"):
        raise InvalidInput(
            "The format of a full-text index is not supported by this release.",
            index=uri,
            advice=f"drop it, and build it again with block_size={BLOCK} and the default format: headgate index build",
        )
    # For max_token_length None is a value (no limit); for custom_stop_words None means that there are none.
    absent = {"lance_tokenizer"} | ({"custom_stop_words"} if parameters.get("custom_stop_words") is None else set())
    return {name: value for name, value in parameters.items() if name not in absent}
