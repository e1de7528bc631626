from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoints.log.codec import decode_fold, decode_record, encode
from headgate.checkpoints.log.records import BatchRecord, Fold, LogRecord, ShardPart, WriteMode
from headgate.checkpoints.log.state import empty, fold, replayed
from headgate.errors import Corrupt, InvalidInput
from headgate.records import FORMAT, checksum
from tests.support.logs import SHARD, batch_record, full_record, open_record, part


def a_fold() -> Fold:
    state = replayed(empty("orders"), [open_record(), batch_record(2, 0, 1, 2), batch_record(3, 1, 5)])
    return fold(state, {SHARD: 1})


@pytest.mark.parametrize("record", [open_record(), full_record(), batch_record(2, 0)], ids=["open", "batch", "no rows"])
def test_a_record_reads_back_as_it_was(record: LogRecord) -> None:
    assert decode_record(encode(record)) == record


def test_a_fold_reads_back_as_it_was() -> None:
    assert decode_fold(encode(a_fold())) == a_fold()


def test_people_can_read_a_record() -> None:
    text = encode(full_record()).decode()
    assert '"rows": 20,\n' in text
    assert '"sources": [["t", 0, 5, 9], ["t", 1, 0, 0]],\n' in text
    assert json.loads(text)["shards"]["s0"]["positions"] == [4, 5, 9]


@given(
    st.text(),
    st.lists(st.integers(0, 2**63), min_size=1, unique=True).map(sorted),
    st.sampled_from(["wal", "memtable"]),
    st.integers(0, 2**40),
)
def test_every_record_reads_back(stream: str, positions: list[int], mode: WriteMode, rows: int) -> None:
    shards = {stream: ShardPart(uuid.uuid4(), "a", tuple(positions), rows, rows)}
    record = replace(full_record(), stream=stream, query_id=stream, shards=shards, mode=mode)
    assert decode_record(encode(record)) == record


def resealed(data: bytes, **changes: object) -> bytes:
    """The record with other fields, its checksum made right."""
    fields = {**json.loads(data), **changes}
    return json.dumps({**fields, "checksum": checksum(fields)}).encode()


def test_a_newer_format_is_refused_and_says_which_release_wrote_it() -> None:
    data = resealed(encode(open_record()), format=FORMAT + 1, release="headgate 9.9", kind="unheard of")
    with pytest.raises(InvalidInput, match=r"format 4, written by headgate 9\.9"):
        decode_record(data)


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_every_format_up_to_this_one_is_read(version: int) -> None:
    assert decode_record(resealed(encode(full_record()), format=version)) == full_record()


def test_keys_that_are_not_known_are_ignored() -> None:
    assert decode_record(resealed(encode(full_record()), later={"a": [1]})) == full_record()


def test_white_space_and_the_order_of_keys_do_not_count() -> None:
    fields = json.loads(encode(full_record()))
    assert decode_record(json.dumps(dict(reversed(fields.items())), indent=4).encode()) == full_record()


@pytest.mark.parametrize("record", [open_record(), full_record()], ids=["open", "batch"])
def test_any_flipped_character_is_found(record: LogRecord) -> None:
    data = encode(record)
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 0x01
        with pytest.raises((Corrupt, InvalidInput)):
            pytest.fail(f"character {index} of {data!r} gave {decode_record(bytes(damaged))}")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"format": true}', b"[" * 100_000])
def test_what_is_no_record_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_record(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "else"},
        {"sequence": -1},
        {"sequence": "7"},
        {"batch_id": True},
        {"mode": "else"},
        {"rows": 1},
        {"shards": []},
        {"shards": {"s0": {}}},
        {"shards": {"s0": {"shard_id": "x", "attempt_id": "a", "positions": [1], "rows": 20, "nbytes": 1}}},
        {"sources": [["t", 0, 5]]},
        {"sources": [[0, 0, 5, 9]]},
    ],
)
def test_fields_that_make_no_sense_are_corrupt(changes: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        decode_record(resealed(encode(full_record()), **changes))


def test_a_fold_is_no_record_and_a_record_no_fold() -> None:
    with pytest.raises(Corrupt):
        decode_record(encode(a_fold()))
    with pytest.raises(Corrupt):
        decode_fold(encode(open_record()))


@pytest.mark.parametrize("positions", [(), (2, 1), (1, 1), (-1,)])
def test_positions_that_do_not_rise_are_refused(positions: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput):
        part(*positions)


def test_rows_are_those_of_the_shards() -> None:
    record: BatchRecord = full_record()
    assert (record.rows, record.nbytes) == (20, 2000)
