"""What pyarrow.json does that the decoder guards against. A test that fails here says: a guard may go."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json as arrow_json
import pytest


def _read(text: bytes, kind: pa.DataType, *, nullable: bool = True) -> list[Any]:
    options = arrow_json.ParseOptions(
        explicit_schema=pa.schema([pa.field("a", kind, nullable)]), unexpected_field_behavior="ignore"
    )
    values: list[Any] = arrow_json.open_json(pa.BufferReader(text), parse_options=options).read_all()["a"].to_pylist()
    return values


CRASH = """
import pyarrow as pa, pyarrow.json
options = pyarrow.json.ParseOptions(explicit_schema=pa.schema([("a", pa.int64())]), unexpected_field_behavior="ignore")
pyarrow.json.open_json(pa.BufferReader(b"null\\n"), parse_options=options).read_all()
"""


def test_a_null_document_kills_the_process() -> None:
    """apache/arrow#47409; the reason for `screen`."""
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGSEGV


def test_two_documents_in_a_line_are_two_rows() -> None:
    assert _read(b'{"a": 1} {"a": 2}\n', pa.int64()) == [1, 2]


def test_bytes_that_are_no_utf8_pass_where_nobody_reads() -> None:
    assert _read(b'{"x": "\xff", "a": 1}\n', pa.int64()) == [1]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"NaN", pa.float64()),
        (b"-Inf", pa.float64()),
        (b"1.7976931348623159e308", pa.float64()),
        (b"1e39", pa.float32()),
    ],
    ids=str,
)
def test_numbers_that_are_not_finite_pass(text: bytes, kind: pa.DataType) -> None:
    (value,) = _read(b'{"a": %s}\n' % text, kind)
    assert value - value != 0


def test_a_decimal_may_have_more_digits_than_its_type() -> None:
    assert _read(b'{"a": 100000000}\n', pa.decimal128(10, 2)) == [Decimal("100000000.00")]


def test_a_zone_shifts_a_timestamp_without_one() -> None:
    assert _read(b'{"a": "2024-01-02T03:00:00+02:00"}\n', pa.timestamp("us")) == [datetime(2024, 1, 2, 1)]


def test_a_date_is_a_number_only() -> None:
    with pytest.raises(pa.ArrowInvalid, match="from number to string"):
        _read(b'{"a": "2024-01-02"}\n', pa.date32())


def test_base64_is_kept_as_text() -> None:
    assert _read(b'{"a": "aGk="}\n', pa.binary()) == [b"aGk="]


def test_a_null_struct_with_a_required_field_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="a required field was null"):
        _read(b'{"a": null}\n', pa.struct([pa.field("x", pa.int64(), nullable=False)]))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"k": 1}', pa.map_(pa.string(), pa.int64())),
        (b"[1]", pa.large_list(pa.int64())),
        (b"[1]", pa.list_(pa.int64(), 1)),
        (b"1", pa.float16()),
    ],
    ids=str,
)
def test_maps_other_lists_and_half_floats_are_not_read(text: bytes, kind: pa.DataType) -> None:
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        _read(b'{"a": %s}\n' % text, kind)
