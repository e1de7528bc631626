"""Checks of values before `pyarrow.json` may parse them.

Promise: every accepted text begins with '{', ends with '}' and contains no NUL, and none has a bare `null` between two
documents. When the texts are joined with newlines, three things follow:

1. Each joining newline stands between '}' and '{', which JSON allows only between documents (a bare newline inside a
   string is an error). So every text gives at least one row, and if there are as many rows as texts, row i is text i.
2. A NUL, which ends pyarrow.json's input early, cannot hide texts behind it.
3. pyarrow.json never meets a document `null`, on which it crashes the process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.streaming.decode.json.base import SAMPLE

Positions: TypeAlias = "npt.NDArray[np.int64]"
Refuse: TypeAlias = Callable[[int, str], None]
"""Gets the position of a bad record and the reason."""

_SPACE = " \t\r\n"
_SPACES = np.isin(np.arange(256), list(_SPACE.encode()))
_OPENING, _CLOSING = ord("{"), ord("}")
_NULL_AFTER_OBJECT = re.compile(rb"\}[ \t\r\n]*null")


def screen(
    values: pa.Array, at: Positions, refuse: Refuse, is_document: Callable[[str], bool]
) -> tuple[pa.Array, Positions]:
    """The texts that may be parsed, trimmed, with their positions; the others go to `refuse`.

    `is_document` returns whether a suspicious text is one JSON document.
    """
    texts, at = _utf8(values, at, refuse)
    texts, at = _objects(texts, at, refuse)
    return _without_traps(texts, at, refuse, is_document)


def layout(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Offsets (one more than values, not starting at zero) and bytes of a string or binary array, without a copy."""
    if not len(array):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    width = np.dtype(np.int64 if large else np.int32)
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, width, len(array) + 1, array.offset * width.itemsize)
    return offsets, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def _utf8(values: pa.Array, at: Positions, refuse: Refuse) -> tuple[pa.Array, Positions]:
    try:
        return values.cast(pa.string()), at
    except pa.ArrowInvalid:
        pass
    suspects = np.flatnonzero(~_mask(pc.string_is_ascii(values.view(pa.string()))))
    keep = np.ones(len(values), bool)
    for row in suspects:
        try:
            values[int(row)].as_buffer().to_pybytes().decode()
        except UnicodeDecodeError as error:
            keep[row] = False
            refuse(int(at[row]), f"not UTF-8: byte {error.start}")
    return values.filter(pa.array(keep)).cast(pa.string()), at[keep]


def _objects(texts: pa.Array, at: Positions, refuse: Refuse) -> tuple[pa.Array, Positions]:
    keep = _braced(texts)
    if keep.all():
        return texts, at
    texts = pc.ascii_trim(texts, _SPACE)
    keep = _braced(texts)
    for row in np.flatnonzero(~keep):
        refuse(int(at[row]), _why_not_object(texts[int(row)].as_py()))
    return texts.filter(pa.array(keep)), at[keep]


def _braced(texts: pa.Array) -> npt.NDArray[np.bool_]:
    offsets, data = layout(texts)
    filled = np.diff(offsets) >= 2
    keep = np.zeros(len(texts), bool)
    keep[filled] = (data[offsets[:-1][filled]] == _OPENING) & (data[offsets[1:][filled] - 1] == _CLOSING)
    return keep


def _why_not_object(text: str) -> str:
    if not text:
        return "empty value"
    if text.startswith("{"):
        return f"not JSON: the object is cut off, or text follows it: {_clip(text[-SAMPLE:])}"
    return f"not a JSON object: {_clip(text[:SAMPLE])}"


def _clip(text: str) -> str:
    return f"'{ascii(text)[1:-1][:SAMPLE]}'"


def _without_traps(
    texts: pa.Array, at: Positions, refuse: Refuse, is_document: Callable[[str], bool]
) -> tuple[pa.Array, Positions]:
    offsets, data = layout(texts)
    whole = data[offsets[0] : offsets[-1]]
    keep = np.ones(len(texts), bool)
    if not whole.all():
        for row in _rows_at(np.flatnonzero(whole == 0), offsets):
            keep[row] = False
            refuse(int(at[row]), "not JSON: a NUL byte")
    for row in _rows_at(_nulls_after_objects(whole, len(texts)), offsets):
        if keep[row] and not is_document(texts[int(row)].as_py()):
            keep[row] = False
            refuse(int(at[row]), "not JSON: null after the object")
    return (texts, at) if keep.all() else (texts.filter(pa.array(keep)), at[keep])


def _nulls_after_objects(data: npt.NDArray[np.uint8], texts: int) -> Positions:
    """Positions where `null` follows the end of an object. Only closing braces are checked, which are few."""
    closing = data == _CLOSING
    if np.count_nonzero(closing) == texts:
        return np.empty(0, np.int64)  # each text has only the brace that it ends with
    ends = np.flatnonzero(closing[:-1])
    after = data[ends + 1]
    if _SPACES[after].any():
        return np.array([match.start() for match in _NULL_AFTER_OBJECT.finditer(data.data)], np.int64)
    found: Positions = ends[after == ord("n")].astype(np.int64)
    return found


def _rows_at(places: Positions, offsets: npt.NDArray[Any]) -> Positions:
    rows: Positions = np.unique(np.searchsorted(offsets - offsets[0], places, side="right") - 1)
    return rows


def _mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    made: npt.NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return made
