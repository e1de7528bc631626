"""Which decoder made a record's row: by the open records alone, which outlive the batch records."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
import pytest

from headgate.checkpoints.log.records import OpenRecord
from headgate.errors import Corrupt
from headgate.shards.rows.schema import PRIMARY_KEY, RowSchema
from headgate.streaming.decode import api as decode
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.kinds import KINDS
from headgate.streaming.decode.provenance import Provenance, provenance_of, provenance_value
from headgate.streaming.verify.compare import Prints, beside, compare
from headgate.streaming.verify.history import CommittedRange, Era, eras_of

COLUMNS = RowSchema.of(pa.schema([("id", pa.int64())]))
OTHERWISE = Era(0, 0, Provenance("nobody said", COLUMNS, None), True)


def said(sequence: int, kind: str, end: int | None) -> tuple[OpenRecord, Provenance]:
    ends = () if end is None else (("t", 0, end), ("t", 1, 1000))
    record = OpenRecord(record_id="r", sequence=sequence, stream="s", query_id="q", shards={}, decoder={}, ends=ends)
    return record, Provenance(kind, COLUMNS, None)


@pytest.mark.parametrize(
    ("part", "opens", "expected"),
    [
        ((0, 9, 0, None), [], [(0, 9, "nobody said")]),
        ((0, 9, 0, None), [said(1, "a", None)], [(0, 9, "a")]),
        ((0, 9, 0, None), [said(4, "a", 5)], [(0, 5, "nobody said"), (5, 9, "a")]),
        ((0, 9, 0, None), [said(1, "a", None), said(4, "b", 5), said(6, "c", 5)], [(0, 5, "a"), (5, 9, "c")]),
        ((0, 9, 0, None), [said(1, "a", None), said(8, "b", 9)], [(0, 9, "a")]),
        ((2, 9, 0, None), [said(1, "a", 0)], [(2, 9, "a")]),
        # A rewind at sequence 5: the first pass had one decoder, the second begins with it and changes it.
        ((0, 7, 0, 5), [said(1, "a", None), said(6, "b", 3)], [(0, 7, "a")]),
        ((2, 9, 5, None), [said(1, "a", None), said(6, "b", 3)], [(2, 3, "a"), (3, 9, "b")]),
        ((0, 0, 0, None), [said(1, "a", None)], []),
    ],
)
def test_a_record_was_decoded_as_the_last_open_record_below_it_says(
    part: tuple[int, int, int, int | None], opens: list[tuple[OpenRecord, Provenance]], expected: list[object]
) -> None:
    start, until, after, ended_by = part
    eras = eras_of(CommittedRange("s", "t", 0, start, until, True, after, ended_by), opens, OTHERWISE)
    assert [(era.start, era.until, era.made.kind) for era in eras] == expected


def test_a_decoder_of_somebody_s_own_is_recorded_by_name_and_never_made_again() -> None:
    class Own:
        schema = pa.schema([("id", pa.int64())])

        def decode(self, values: pa.Array) -> decode.Decoded:
            raise NotImplementedError

    told = provenance_value(Own(), COLUMNS, changed=False)
    found = provenance_of(told)
    assert (found.kind.endswith("Own"), found.decoder, found.can_judge) == (True, None, False)
    assert "--decode" in found.why_not
    with pytest.raises(Corrupt, match="decoder in an open record is invalid"):
        provenance_of({**told, "columns": "no schema"})


KEYED = pa.schema([pa.field("id", pa.int64(), False, {PRIMARY_KEY: b"true"}), pa.field("note", pa.string())])
MADE = {
    "json": decode.json(KEYED),
    "debezium": decode.debezium(KEYED, primary_key="id"),
    "avro": decode.avro(KEYED, registry="http://registry:8081", schemas={7: '"long"'}),
    "raw": decode.raw("payload", kind=pa.string()),
}
BESIDE = {"at": "timestamp", "key": "key"}
WITH_KAFKA = {
    "json": decode.json(KEYED, metadata=BESIDE),
    "debezium": decode.debezium(KEYED, primary_key="id", metadata=BESIDE),
    "avro": decode.avro(KEYED, registry="http://registry:8081", metadata=BESIDE),
    "raw": decode.raw("payload", kind=pa.string(), metadata=BESIDE),
}


@pytest.mark.parametrize("made", [MADE, WITH_KAFKA], ids=["values", "with Kafka's columns"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_decoder_of_headgate_is_made_again_from_its_record(kind: str, made: Mapping[str, Decoder]) -> None:
    value = json.loads(json.dumps(provenance_value(made[kind], COLUMNS, changed=False)))
    found = provenance_of(value)
    assert (found.kind, found.decoder, found.columns) == (kind, made[kind], COLUMNS)


@pytest.mark.parametrize(
    ("found", "others", "expected"),
    [
        ([1, 2, 7, 7], 2, (0, 0)),
        ([1, 2, 7], 2, (1, 0)),
        ([1, 2, 7, 7, 8], 2, (0, 1)),
        ([1, 7, 7], 2, (1, 0)),
        ([1, 2, 7, 7, 8], None, (0, 0)),
        ([1, 7], None, (1, 0)),
    ],
)
def test_beside_rows_that_cannot_be_judged_the_others_are_and_all_are_counted(
    found: list[int], others: int | None, expected: tuple[int, int]
) -> None:
    def prints(numbers: list[int]) -> Prints:
        return Prints.of(COLUMNS, [pa.record_batch({"id": pa.array(numbers, pa.int64())})])

    difference = compare(prints([1, 2]), prints(found), keyed=False)
    judged = beside(difference, 2, len(found), others, keyed=False)
    assert (judged.lost, judged.wrong) == expected


def test_metadata_in_another_order_is_the_same_decoder() -> None:
    """Lance gives it back in another order at each open; another decoder would cost one more open record a batch."""
    texts = []
    for keys in (("x", "y"), ("y", "x")):
        metadata = dict.fromkeys(keys, "1")
        schema = pa.schema([pa.field("id", pa.int64(), metadata=metadata)], metadata)
        texts.append(provenance_value(decode.json(schema), RowSchema.of(schema), changed=False))
    assert texts[0] == texts[1]
