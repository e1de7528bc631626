"""The whole-column reader: `pyarrow.json` reads many records at once, and each column is converted at once.

Promise: every position ends up in `positions` or in `bad`, good rows in order; a record is bad only if this reader
refuses it by itself. Two things can be wrong in a set of records:
1. A column cannot be converted (a null, a range, a time). It names the bad rows exactly; they are dropped, and the
   parsed columns are kept.
2. The text does not parse. It is split in halves and parsed again. For the last few rows, and if many are bad,
   `RecordReader` checks each record, and those that fit are parsed again together.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from headgate.streaming.decode.json.base import Unfit, Unsure, clipped
from headgate.streaming.decode.json.coerce import Coerce
from headgate.streaming.decode.json.records import RecordReader
from headgate.streaming.decode.json.screen import Positions, layout, screen
from headgate.streaming.decode.json.types import columns_of

WINDOW_BYTES = 8 << 20
"""Bytes parsed at once. Limits the parser's memory; more would not be faster."""

MAX_VALUE_BYTES = 1 << 30
"""Maximum size of a value: pyarrow.json counts the bytes of a block in 31 bits. Kafka's default limit is 1 MiB."""

LOOK_ROWS = 64
"""The smallest number of rows to parse by itself: below, a call costs as much as checking each record."""

MANY_BAD = 100
"""If more than one record in this many is bad, the next records are checked one by one at once."""

MANY_ROWS = 2048
"""If many records are bad, this many are checked one by one before whole columns are tried again."""

_NOT_PARSED = (pa.ArrowInvalid, Unfit, Unsure)


class ColumnReader:
    """The state of one call of decode."""

    def __init__(self, schema: pa.Schema, coerce: Coerce = ()) -> None:
        self._schema = schema
        self._columns = columns_of(schema, coerce)
        self._records = RecordReader(self._columns)
        by_record = {field.name for field in self._columns.fields if field.type.by_record}
        stand_ins = {field.name: field.type.stand_in for field in self._columns.fields}
        parsed = [pa.field(name, kind) for name, kind in stand_ins.items() if name not in by_record]
        self._parse_options = arrow_json.ParseOptions(
            explicit_schema=pa.schema(parsed), unexpected_field_behavior="ignore"
        )
        self._by_record = {name: stand_ins[name] for name in by_record}
        self._read: list[tuple[dict[str, pa.Array], pa.Array, Positions]] = []
        """Columns, texts and positions of the current window, in order."""
        self._good: list[pa.RecordBatch] = []
        self._good_at: list[Positions] = []
        self.bad: dict[int, str] = {}
        """Reasons by position."""
        self._many_bad = False

    def decode(self, values: pa.Array, at: Positions) -> None:
        """Decode values (binary, no nulls) at these positions, window by window."""
        for start, stop in _windows(values):
            window = values.slice(start, stop - start)
            if stop - start == 1 and len(window[0].as_buffer()) > MAX_VALUE_BYTES:
                self._refuse(int(at[start]), f"larger than {MAX_VALUE_BYTES} bytes")
                continue
            self._take(*screen(window, at[start:stop], self._refuse, self._is_document))
            self._settle_all()

    def rows(self) -> pa.RecordBatch:
        """The good rows."""
        if len(self._good) == 1:
            return self._good[0]
        return pa.concat_batches([pa.RecordBatch.from_pylist([], schema=self._schema), *self._good])

    def positions(self) -> Positions:
        """The position of each good row."""
        return np.concatenate([np.empty(0, np.int64), *self._good_at])

    # -- from fast to thorough -------------------------------------------------------

    def _take(self, texts: pa.Array, at: Positions, *, fails: bool = False) -> None:
        """Parse all texts at once. Texts that do not parse are halved, down to single records. `fails`: it is known
        that they do not parse together.
        """
        if not (fails or self._many_bad) and self._parsed(texts, at):
            return
        if len(texts) <= (MANY_ROWS if self._many_bad else LOOK_ROWS):
            self._look(texts, at)
            return
        middle = len(texts) // 2
        left, left_at = texts.slice(0, middle), at[:middle]
        parsed = not self._many_bad and self._parsed(left, left_at)
        if not parsed:
            self._take(left, left_at, fails=True)
        # If the left half parsed, the right half does not.
        self._take(texts.slice(middle), at[middle:], fails=parsed)

    def _look(self, texts: pa.Array, at: Positions) -> None:
        """Check record by record, and parse those that fit together."""
        fits = np.array([self._fits(text, int(at[row])) for row, text in enumerate(texts.to_pylist())], bool)
        self._many_bad = int(np.count_nonzero(~fits)) * MANY_BAD > len(fits)
        self._halve(texts.filter(pa.array(fits)), at[fits])

    def _fits(self, text: str, at: int) -> bool:
        """True if a record fits, by the rules; if they cannot tell, by the parser."""
        try:
            self._records.read(text)
        except Unfit as error:
            self._refuse(at, str(error))
            return False
        except Unsure:
            return self._fits_alone(pa.array([text]), at)
        return True

    def _fits_alone(self, text: pa.Array, at: int) -> bool:
        try:
            self._finish(self._parse(text))
        except _NOT_PARSED as error:
            self._refuse(at, clipped(str(error)))
            return False
        return True

    def _halve(self, texts: pa.Array, at: Positions) -> None:
        """Parse at once. Halving finds the rare record that `RecordReader` accepts and the parser refuses."""
        if self._parsed(texts, at):
            return
        if len(texts) == 1:
            self._fits_alone(texts, int(at[0]))
            return
        middle = len(texts) // 2
        self._halve(texts.slice(0, middle), at[:middle])
        self._halve(texts.slice(middle), at[middle:])

    def _parsed(self, texts: pa.Array, at: Positions) -> bool:
        """True if the texts parse; their columns then wait for `_settle`."""
        if len(texts):
            try:
                self._read.append((self._parse(texts), texts, at))
            except _NOT_PARSED:
                return False
        return True

    def _settle_all(self) -> None:
        read, self._read = self._read, []
        if len(read) == 1:
            self._settle(*read[0])
        elif read:
            columns = {name: pa.concat_arrays([part[name] for part, _, _ in read]) for name in read[0][0]}
            texts, at = pa.concat_arrays([texts for _, texts, _ in read]), np.concatenate([at for _, _, at in read])
            self._settle(columns, texts, at)

    def _settle(self, columns: dict[str, pa.Array], texts: pa.Array, at: Positions) -> None:
        """Convert the parsed columns. Rows that a column refuses become bad, the others good."""
        while len(texts):
            try:
                batch = self._finish(columns)
            except (pa.ArrowInvalid, Unfit) as error:
                bad = _marked(error)
                if not len(bad) and len(texts) > 1:
                    middle = len(texts) // 2
                    for part in (slice(0, middle), slice(middle, None)):
                        self._settle({name: column[part] for name, column in columns.items()}, texts[part], at[part])
                    return
                bad = bad if len(bad) else np.zeros(1, np.int64)
                for row, text in zip(bad, texts.take(pa.array(bad)).to_pylist(), strict=True):
                    self._refuse(int(at[row]), self._why(text) or clipped(str(error)))
                fits = np.ones(len(texts), bool)
                fits[bad] = False
                columns = {name: column.filter(pa.array(fits)) for name, column in columns.items()}
                texts, at = texts.filter(pa.array(fits)), at[fits]
            else:
                self._good.append(batch)
                self._good_at.append(at)
                return

    # -- one call of the parser --------------------------------------------------------

    def _parse(self, texts: pa.Array) -> dict[str, pa.Array]:
        """The stand-in columns of screened texts; fails if any text does not parse."""
        lines = pc.binary_join_element_wise(texts, "", "\n")
        offsets, _ = layout(lines)
        start, stop = int(offsets[0]), int(offsets[-1])
        # Not read_json, which starts a thread per call. One block: only at a block's end does a newline have a meaning
        # of its own.
        reader = arrow_json.open_json(
            pa.BufferReader(lines.buffers()[2].slice(start, stop - start)),
            read_options=arrow_json.ReadOptions(block_size=stop - start),
            parse_options=self._parse_options,
        )
        table = reader.read_all()
        if table.num_rows != len(texts):
            raise Unfit("not JSON: more than one document")
        columns = {name: _one_chunk(table.column(name)) for name in table.column_names}
        if self._by_record:
            records = [self._records.by_record(text) for text in texts.to_pylist()]
            columns |= {n: pa.array([record[n] for record in records], kind) for n, kind in self._by_record.items()}
        return columns

    def _finish(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        arrays = [field.finish(columns[field.name], field.name) for field in self._columns.fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _why(self, text: str) -> str | None:
        """The error of a record, more precise than its column's error."""
        try:
            self._records.read(text)
        except Unfit as error:
            return str(error)
        except Unsure:
            pass
        return None

    def _refuse(self, at: int, why: str) -> None:
        self.bad[at] = why

    def _is_document(self, text: str) -> bool:
        try:
            self._records.load(text)
        except (Unfit, Unsure):
            return False
        return True


def _windows(values: pa.Array) -> Iterator[tuple[int, int]]:
    """Ranges of values with about WINDOW_BYTES each, or with one larger value."""
    offsets, _ = layout(values)
    start = 0
    while start < len(values):
        limit = int(offsets[start]) + WINDOW_BYTES
        stop = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield start, stop
        start = stop


def _marked(error: Exception) -> Positions:
    """The rows that an error marks; empty if it marks none."""
    rows = error.rows if isinstance(error, Unfit) else None
    if rows is None:
        return np.empty(0, np.int64)
    return np.flatnonzero(rows.fill_null(False).to_numpy(zero_copy_only=False))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
