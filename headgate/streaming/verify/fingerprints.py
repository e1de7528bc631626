"""A 64-bit fingerprint per row, to compare sets of rows of any size.

Pure on Arrow arrays and vectorised. Promises: equal values of one type have equal fingerprints in any batch, slice or
buffer; nulls, empty values and zeros differ from each other. Two different rows have the same fingerprint with a
probability of 1 in 2^64, about as rare as memory errors.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InvalidInput

Words: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"

_NULL = np.uint64(0x9AE16A3B2F90404F)
_PIECE = 2_048
"""Rows per step. Intermediate data is eight times as large as the rows' bytes and should stay in the cache."""
_STEP = np.uint64(0x9E3779B97F4A7C15)


def row_fingerprints(rows: pa.RecordBatch, columns: list[str]) -> Words:
    """The fingerprint of each row's values in these columns, in this order. Raises InvalidInput for a type that tables
    cannot have.
    """
    pieces = [_rows(rows.slice(start, _PIECE), columns) for start in range(0, rows.num_rows, _PIECE)]
    return np.concatenate([np.zeros(0, np.uint64), *pieces])


def _rows(rows: pa.RecordBatch, columns: list[str]) -> Words:
    result = np.zeros(rows.num_rows, np.uint64)
    for name in columns:
        result = _mixed(result * _STEP + _column(rows.column(name)))
    return result


def _column(array: pa.Array) -> Words:
    kind = array.type
    if pa.types.is_struct(kind):
        words = np.full(len(array), len(array.type), np.uint64)
        for child in array.flatten():
            words = _mixed(words * _STEP + _column(child))
    elif pa.types.is_fixed_size_list(kind):
        valid = array if not array.null_count else array.drop_null()
        parts = _column(valid.flatten()).reshape(len(valid), kind.list_size)
        found = _sums(parts.reshape(-1), np.full(len(valid), kind.list_size, np.int64))
        words = np.zeros(len(array), np.uint64)
        words[np.asarray(array.is_valid())] = found
    elif pa.types.is_map(kind):
        words = _column(array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        words = _sums(_column(array.flatten()), _lengths(array))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        words = _text(array, np.int32)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        words = _text(array, np.int64)
    elif pa.types.is_boolean(kind):
        words = _mixed(np.asarray(array.cast(pa.uint8()).fill_null(0)).astype(np.uint64))
    else:
        words = _fixed(array)
    if array.null_count:
        words = np.where(np.asarray(array.is_null()), _NULL, words)
    return words


def _fixed(array: pa.Array) -> Words:
    """Words of fixed-width values, from their bits."""
    try:
        width = array.type.byte_width
    except ValueError:
        raise InvalidInput(f"Values of type {array.type} cannot be compared.") from None
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array), np.uint64)
    data = np.frombuffer(buffer, np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    padded = -(-width // 8) * 8
    cells = np.zeros((len(array), padded), np.uint8)
    cells[:, :width] = data.reshape(len(array), width)
    words = np.full(len(array), width, np.uint64)
    for part in cells.view(np.uint64).reshape(len(array), padded // 8).T:
        words = _mixed(words * _STEP + part)
    return words


def _text(array: pa.Array, offsets: Any) -> Words:
    """Words of variable-width values, from each byte and its place in the value."""
    _, ends, data = array.buffers()
    if not len(array):
        return np.zeros(0, np.uint64)
    edges = np.frombuffer(ends, offsets)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[edges[0] : edges[-1]]
    return _sums(content.astype(np.uint64), np.diff(edges))


def _lengths(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(pc.list_value_length(array).fill_null(0)).astype(np.int64)


def _sums(words: Words, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> Words:
    """One word per run of words: the run's length, and the sum of its words, each mixed with its place."""
    starts = np.cumsum(lengths) - lengths
    places = np.arange(len(words), dtype=np.int64) - np.repeat(starts, lengths)
    mixed = _mixed(_mixed(words + _STEP) + places.astype(np.uint64) * _STEP)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return _mixed(total[starts + lengths] - total[starts] + lengths.astype(np.uint64))


def _mixed(words: Words) -> Words:
    """SplitMix64's last step: every bit of the input reaches every bit of the output."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
