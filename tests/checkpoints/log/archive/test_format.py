"""Records as objects of an archive: what comes out is what went in, and no damage passes."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from headgate.checkpoints.log import codec
from headgate.checkpoints.log.archive import format as archived
from headgate.checkpoints.log.archive.archive import LOT
from headgate.checkpoints.log.archive.format import (
    ArchiveName,
    Leaving,
    covers,
    decode,
    encode,
    name_of,
    pieces,
    runs_of,
)
from headgate.checkpoints.log.records import BatchRecord, LogRecord
from headgate.errors import Corrupt, InvalidInput
from headgate.records import plain, text_of
from headgate.shards.wal.entry import SourceRange
from tests.support.logs import batch_record, full_record, open_record, part

NOON = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


def leaving(sequence: int, text: bytes | None = None) -> Leaving:
    record = batch_record(sequence, sequence, sequence)
    return Leaving(record, NOON + timedelta(seconds=sequence), text or codec.encode(record))


def spans(found: Iterable[list[Leaving]]) -> list[list[int]]:
    return [[one.sequence for one in piece] for piece in found]


def test_records_and_their_times_come_out_as_they_went_in() -> None:
    full = full_record()
    piece = [Leaving(full, NOON, codec.encode(full))]
    name, data = encode(piece)
    assert name.span == (7, 7)
    (found,) = decode(data, name, full.stream)
    assert (found.record, found.committed_at, found.sequence) == (full, NOON, 7)
    many = [leaving(sequence) for sequence in (2, 3, 5)]
    name, data = encode(many)
    assert [(one.record, one.committed_at) for one in decode(data, name, "orders")] == [
        (one.record, one.committed_at) for one in many
    ]
    assert encode(many) == (name, data), "the same records make the same object"
    # Nothing but JSON is in it, and each record is as it was stored.
    head, *lines = gzip.decompress(data).splitlines()
    assert json.loads(head)["records"] == 3
    assert json.loads(lines[0])["record"] == json.loads(many[0].text)


def test_a_key_that_this_release_does_not_know_stays_in_the_record() -> None:
    fields = {**plain(batch_record(2, 0, 1)), "later": {"a": 'line\n "two"'}}
    name, data = encode([leaving(2, text_of(fields))])
    assert json.loads(gzip.decompress(data).splitlines()[1])["record"]["later"] == fields["later"]
    assert decode(data, name, "orders")[0].record == batch_record(2, 0, 1)


@pytest.mark.parametrize(
    ("sequences", "staying", "expected"),
    [
        ([], [], []),
        ([2, 3, 4], [1], [[2, 3, 4]]),
        ([2, 4, 5], [1, 3], [[2, 4, 5]]),  # 3 is an open record
        ([2, 4, 5], [1], [[2], [4, 5]]),  # another collection took 3: the name must not claim it
        ([2, 7, 8], [3, 4, 6], [[2], [7, 8]]),
        ([2, 3, 4, 5, 6, 7], [], [[2, 3, 4, 5], [6, 7]]),  # four at most
    ],
)
def test_an_object_has_all_batches_between_its_first_and_last(
    monkeypatch: pytest.MonkeyPatch, sequences: list[int], staying: list[int], expected: list[list[int]]
) -> None:
    monkeypatch.setattr(archived, "MAX_RECORDS", 4)
    assert spans(pieces(map(leaving, sequences), staying.__contains__)) == expected


def test_an_object_is_of_bounded_size_or_has_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(leaving(2).text)
    monkeypatch.setattr(archived, "MAX_BYTES", 2 * size + 10)
    assert spans(pieces(map(leaving, range(2, 7)), lambda sequence: False)) == [[2, 3], [4, 5], [6]]
    monkeypatch.setattr(archived, "MAX_BYTES", 1)
    assert spans(pieces(map(leaving, range(2, 4)), lambda sequence: False)) == [[2], [3]]


@pytest.mark.parametrize(("shards", "most"), [(1, 110), (4, 220), (32, 1300)])
def test_a_batch_takes_few_bytes(shards: int, most: int) -> None:
    """Of which docs/guides/delta.md speaks: random ids of a record and of each shard's attempt are most of it."""
    ids = [uuid.uuid4() for _ in range(shards)]
    piece = []
    for number in range(LOT):
        parts = {
            f"partition:orders:{place}": part(number + 1, shard=ids[place], rows=900 + (number * 7919 + place) % 200)
            for place in range(shards)
        }
        record = BatchRecord(
            record_id=uuid.uuid4().hex,
            sequence=number + 2,
            stream="orders",
            open_id=uuid.UUID(int=1).hex,
            query_id=str(uuid.UUID(int=2)),
            batch_id=number,
            sources=tuple(SourceRange("orders", p, 1000 * number, 1000 * number + 1000) for p in range(shards)),
            shards=parts,
        )
        piece.append(Leaving(record, NOON + timedelta(seconds=10.1 * number), codec.encode(record)))
    assert len(encode(piece)[1]) / LOT < most


def test_names_tell_which_sequences_are_there() -> None:
    names = [ArchiveName(2, 5, "0" * 16), ArchiveName(4, 9, "1" * 16), ArchiveName(12, 12, "2" * 16)]
    assert [name_of(str(name)) for name in names] == names
    assert runs_of(reversed(names)) == [(2, 9), (12, 12)]
    assert [one for one in range(15) if covers(runs_of(names), one)] == [*range(2, 10), 12]
    assert not covers([], 1)
    for text in ("", "x.jsonl.gz", str(names[0]) + ".tmp", str(ArchiveName(5, 2, "0" * 16)), f"{2:020d}.json"):
        assert name_of(text) is None


def test_damage_anywhere_is_told() -> None:
    name, data = encode([leaving(sequence) for sequence in (2, 3, 4)])
    whole = decode(data, name, "orders")
    for length in range(0, len(data), 7):
        with pytest.raises(Corrupt):
            decode(data[:length], name, "orders")
    for place in range(10, len(data)):  # the first bytes of gzip say nothing of the content
        flipped = bytearray(data)
        flipped[place] ^= 0x10
        with suppress(Corrupt):
            assert decode(bytes(flipped), name, "orders") == whole, "a bit between the content and its checksum"


def unpacked(*sequences: int) -> tuple[ArchiveName, list[bytes]]:
    name, data = encode([leaving(sequence) for sequence in sequences])
    return name, gzip.decompress(data).splitlines(keepends=True)


def test_an_archive_that_is_not_what_its_name_says_is_refused() -> None:
    name, lines = unpacked(2, 3, 4)
    for wrong in (lines[:-1], [lines[0], lines[2], lines[1], lines[3]], lines[:1], [*lines, lines[-1]], lines[1:], []):
        with pytest.raises(Corrupt):
            decode(gzip.compress(b"".join(wrong)), name, "orders")
    whole = gzip.compress(b"".join(lines))
    assert len(decode(whole, name, "orders")) == 3
    for other in (replace(name, first=1), replace(name, last=5), replace(name, digest="0" * 16)):
        with pytest.raises(Corrupt, match="name"):
            decode(whole, other, "orders")
    with pytest.raises(Corrupt, match="stream"):
        decode(whole, name, "payments")
    with pytest.raises(Corrupt):
        decode(b"{ this was no crash", name, "orders")


def test_only_batches_of_this_release_or_an_older_one_are_read() -> None:
    opened: LogRecord = open_record(2)
    name, data = encode([leaving(2, codec.encode(opened))])
    with pytest.raises(Corrupt, match="not a batch"):
        decode(data, name, "orders")
    name, data = encode([leaving(2, text_of(plain(batch_record(2, 0, 1)), 99))])
    with pytest.raises(InvalidInput, match="format 99"):
        decode(data, name, "orders")
