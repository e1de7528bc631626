"""One pass over values without nulls: from one parse of everything to a look at single records.

Promise: every position ends up in `positions` or in `bad`, good rows in order; a record is
bad only if the parser refuses it by itself. How often a value is parsed is bounded: what
fails is tried in fewer and fewer rows, and where many are bad they are looked at right away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from headgate.streaming.decode.json.records import Rules, Unsure, rules_of
from headgate.streaming.decode.json.screen import Positions, layout, screen
from headgate.streaming.decode.json.types import Unfit, finish, holds_map, stand_in

WINDOW_BYTES = 8 << 20
"""Values parsed at once: bounds the parser's own memory, and is past the size where more makes it faster."""

MAX_VALUE_BYTES = 1 << 30
"""A larger value is bad: pyarrow.json counts a block in 31 bits. Kafka's default limit is 1 MiB."""

PIECES = 16
"""A window that fails is tried again in this many pieces, so that one bad record costs about one more pass."""

LOOK_ROWS = 128
"""The smallest piece that is parsed by itself: below, a call costs as much as a look at each record."""

HINTS = 8
"""How often a window or piece is parsed again without the records that the parser's error points at."""

PATIENCE = 4
"""After this many small pieces, if most have failed, the rest is looked at record by record right away."""

MANY_BAD = 100
"""With more than one bad record in so many, trying pieces first is not worth it."""

ERROR_CHARS = 80
"""Longest text taken over from Arrow's errors: they may repeat the value."""

_NOT_PARSED = (pa.ArrowInvalid, Unfit, Unsure)


class Pass:
    """One call of decode: what has been found so far."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rules: Rules = rules_of(schema)
        parsed = [pa.field(field.name, stand_in(field.type)) for field in schema if not holds_map(field.type)]
        self._parse_options = arrow_json.ParseOptions(
            explicit_schema=pa.schema(parsed), unexpected_field_behavior="ignore"
        )
        self._mapped = {field.name: stand_in(field.type) for field in schema if holds_map(field.type)}
        self._good: list[pa.RecordBatch] = []
        self._good_at: list[Positions] = []
        self.bad: dict[int, str] = {}
        """Why, by position."""
        self._many_bad = False

    def decode(self, values: pa.Array, at: Positions) -> None:
        """Take the values (binary, no nulls), which stand at these positions, window by window."""
        for start, stop in _windows(values):
            window = values.slice(start, stop - start)
            if stop - start == 1 and len(window[0].as_buffer()) > MAX_VALUE_BYTES:
                self._refuse(int(at[start]), f"larger than {MAX_VALUE_BYTES} bytes")
                continue
            texts, good_at = screen(window, at[start:stop], self._refuse, self._is_document)
            self._take(texts, good_at)

    def rows(self) -> pa.RecordBatch:
        """The good rows."""
        if len(self._good) == 1:
            return self._good[0]
        return pa.concat_batches([pa.RecordBatch.from_pylist([], schema=self._schema), *self._good])

    def positions(self) -> Positions:
        """Where each good row stood."""
        return np.concatenate([_NO_ROWS, *self._good_at])

    # -- from fast to thorough -------------------------------------------------------

    def _take(self, texts: pa.Array, at: Positions) -> None:
        """All of it in one go; where that fails, in pieces."""
        for _ in range(0 if self._many_bad else HINTS):
            failure = self._parsed(texts, at)
            if failure is None:
                return
            # A single row is no hint here: the next one could cost the whole window again.
            fits = self._without(failure.rows if failure.complete else _NO_ROWS, texts, at)
            if fits.all():
                break
            texts, at = texts.filter(pa.array(fits)), at[fits]
        step = max(LOOK_ROWS, -(-len(texts) // PIECES))
        for start in range(0, len(texts), step):
            self._piece(texts.slice(start, step), at[start : start + step])

    def _piece(self, texts: pa.Array, at: Positions) -> None:
        """In one go, without the records that a look at the suspects finds bad."""
        rows = len(texts)
        for _ in range(0 if self._many_bad else HINTS):
            failure = self._parsed(texts, at)
            if failure is None:
                return
            fits = self._without(failure.rows, texts, at)
            if fits.all():
                break
            texts, at = texts.filter(pa.array(fits)), at[fits]
        fits = self._without(self._suspects(texts), texts, at)
        texts, at = texts.filter(pa.array(fits)), at[fits]
        self._many_bad = (rows - len(texts)) * MANY_BAD > rows
        self._halve(texts, at)

    def _without(self, suspects: Positions, texts: pa.Array, at: Positions) -> npt.NDArray[np.bool_]:
        """For each row whether it stays, after a look at the suspects."""
        fits = np.ones(len(texts), bool)
        for row, text in zip(suspects, texts.take(pa.array(suspects)).to_pylist(), strict=True):
            fits[row] = self._look(text, int(at[row]))
        return fits

    def _suspects(self, texts: pa.Array) -> Positions:
        """The rows of a failed piece that need a look: the slices that fail as well."""
        suspects = np.ones(len(texts), bool)
        failed = 0
        for tried, start in enumerate(range(0, len(texts), LOOK_ROWS)):
            if self._many_bad or (tried >= PATIENCE and failed * 2 > tried):
                break
            try:
                self._parse(texts.slice(start, LOOK_ROWS))
                suspects[start : start + LOOK_ROWS] = False
            except _NOT_PARSED:
                failed += 1
        return np.flatnonzero(suspects)

    def _look(self, text: str, at: int) -> bool:
        """Whether one record fits, by the rules; where they cannot tell, by the parser."""
        try:
            self._rules.read(text)
        except Unfit as error:
            self._refuse(at, str(error))
            return False
        except Unsure:
            return self._fits_alone(pa.array([text]), at)
        return True

    def _halve(self, texts: pa.Array, at: Positions) -> None:
        """In one go; halving finds the rare record that the rules let through and the parser does not."""
        if self._parsed(texts, at) is None:
            return
        if len(texts) == 1:
            self._fits_alone(texts, int(at[0]))
            return
        middle = len(texts) // 2
        self._halve(texts.slice(0, middle), at[:middle])
        self._halve(texts.slice(middle), at[middle:])

    def _fits_alone(self, text: pa.Array, at: int) -> bool:
        try:
            self._parse(text)
        except _NOT_PARSED as error:
            self._refuse(at, _clipped(str(error)))
            return False
        return True

    def _parsed(self, texts: pa.Array, at: Positions) -> _Failure | None:
        """Nothing, and the rows are good; or what is known of the failure."""
        if not len(texts):
            return None
        try:
            batch = self._parse(texts)
        except _NOT_PARSED as error:
            return _failure(error, len(texts))
        self._good.append(batch)
        self._good_at.append(at)
        return None

    # -- one call of the parser --------------------------------------------------------

    def _parse(self, texts: pa.Array) -> pa.RecordBatch:
        """The rows of screened texts, all of them or an error."""
        lines = pc.binary_join_element_wise(texts, "", "\n")
        offsets, _ = layout(lines)
        start, stop = int(offsets[0]), int(offsets[-1])
        # Not read_json, which starts a thread per call. One block: its end is the only place
        # where a newline has a meaning of its own.
        reader = arrow_json.open_json(
            pa.BufferReader(lines.buffers()[2].slice(start, stop - start)),
            read_options=arrow_json.ReadOptions(block_size=stop - start),
            parse_options=self._parse_options,
        )
        table = reader.read_all()
        if table.num_rows != len(texts):
            raise Unfit("not JSON: more than one document")
        mapped = self._read_maps(texts)
        columns = [
            finish(mapped[field.name] if field.name in mapped else _one_chunk(table.column(field.name)), field)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _read_maps(self, texts: pa.Array) -> dict[str, pa.Array]:
        if not self._mapped:
            return {}
        records = [self._rules.mapped(text) for text in texts.to_pylist()]
        return {name: pa.array([record[name] for record in records], kind) for name, kind in self._mapped.items()}

    def _refuse(self, at: int, why: str) -> None:
        self.bad[at] = why

    def _is_document(self, text: str) -> bool:
        try:
            self._rules.load(text)
        except (Unfit, Unsure):
            return False
        return True


@dataclass(frozen=True)
class _Failure:
    """Why texts did not parse: rows worth a look, and whether those are all that one column has."""

    rows: Positions
    complete: bool


_NO_ROWS: Positions = np.empty(0, np.int64)
_ROW = re.compile(r" in row (\d+)$")


def _failure(error: Exception, rows: int) -> _Failure:
    """What the error tells. A row in Arrow's text is a hint only: the record is looked at before it is refused."""
    if isinstance(error, Unfit) and error.rows is not None:
        return _Failure(np.flatnonzero(error.rows.fill_null(False).to_numpy(zero_copy_only=False)), True)
    match = _ROW.search(str(error)) if isinstance(error, pa.ArrowInvalid) else None
    if match is None or int(match.group(1)) >= rows:
        return _Failure(_NO_ROWS, False)
    return _Failure(np.array([int(match.group(1))]), False)


def _windows(values: pa.Array) -> Iterator[tuple[int, int]]:
    """Ranges of values with about WINDOW_BYTES, or one larger value."""
    offsets, _ = layout(values)
    start = 0
    while start < len(values):
        limit = int(offsets[start]) + WINDOW_BYTES
        stop = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield start, stop
        start = stop


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _clipped(text: str) -> str:
    printable = ascii(text)[1:-1]
    return printable if len(printable) <= ERROR_CHARS else printable[: ERROR_CHARS - 1] + "…"
