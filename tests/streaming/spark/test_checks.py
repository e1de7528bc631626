"""What cannot become rows of the table is refused before anything is claimed, with what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate
from headgate.errors import InvalidInput
from headgate.streaming.decode.api import json as json_decoder
from headgate.streaming.kafka.source import source
from headgate.streaming.options import Spelling, as_argument, as_option
from headgate.streaming.spark.query import KAFKA_COLUMNS, QueryFacts
from headgate.streaming.write import checks as frame_checks
from headgate.table.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
UNCOMMITTED: dict[str, Any] = {"kafka.isolation.level": "read_uncommitted"}
NAMED: dict[str, Any] = {"kafka.client.id": "secret-one"}
ORIGIN = ["_topic", "_partition", "_offset"]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return headgate.create_table(str(tmp_path_factory.mktemp("tables") / "keyed"), SCHEMA, primary_key="id")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return headgate.create_table(str(tmp_path_factory.mktemp("tables") / "plain"), SCHEMA)


def test_complete_output_is_refused() -> None:
    with pytest.raises(InvalidInput, match="outputMode complete"):
        frame_checks.check_query(QueryFacts(output_mode="complete"))
    frame_checks.check_query(QueryFacts(output_mode="update"))


@pytest.mark.parametrize("name", ["failOnDataLoss", "failondataloss"])
def test_offsets_may_not_be_skipped_silently(name: str) -> None:
    with pytest.raises(InvalidInput, match="failOnDataLoss must be true"):
        frame_checks.check_query(QueryFacts(kafka_options={name: "false"}))


def test_direct_reading_takes_the_bare_source_only() -> None:
    read = source("host:1", "t")
    with pytest.raises(InvalidInput, match="has transformations"):
        frame_checks.check_direct(QueryFacts(bare_kafka=False), read)
    frame_checks.check_direct(QueryFacts(bare_kafka=True, kafka_options=dict(read.options)), read)


def test_direct_reading_takes_the_frame_of_the_same_source() -> None:
    read, other = source("host:1", "t"), source("host:1", "t", **UNCOMMITTED)
    with pytest.raises(InvalidInput, match=r"other options than source=: kafka\.isolation\.level"):
        frame_checks.check_direct(QueryFacts(bare_kafka=True, kafka_options=dict(other.options)), read)


def test_option_values_are_never_told() -> None:
    read = source("host:1", "t", **NAMED)
    other = {**read.options, "kafka.client.id": "secret-two"}
    with pytest.raises(InvalidInput) as error:
        frame_checks.check_direct(QueryFacts(bare_kafka=True, kafka_options=other), read)
    assert "secret" not in str(error.value)
    assert "secret" not in repr(QueryFacts(kafka_options=other)) + repr(read)


def test_a_decoder_needs_the_columns_of_kafka(keyed: Table) -> None:
    frame_checks.check_columns(KAFKA_COLUMNS, json_decoder(SCHEMA), None, keyed)
    with pytest.raises(InvalidInput, match=r"lacks \['offset'\]"):
        frame_checks.check_columns([c for c in KAFKA_COLUMNS if c != "offset"], json_decoder(SCHEMA), None, keyed)
    with pytest.raises(InvalidInput, match="has no column 'id'"):
        frame_checks.check_columns(KAFKA_COLUMNS, json_decoder("note string"), None, keyed)


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("id bigint, note string, more int", "Column 'more' not found"),
        ("id int, note string", "'id' has type int32, but the table has int64"),
        ("note string", "has no column 'id'"),
    ],
)
def test_a_decoder_must_make_the_columns_of_the_table(plain: Table, ddl: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        frame_checks.check_decoder(json_decoder(ddl), plain)


def test_a_decoder_may_leave_out_what_may_be_null(plain: Table) -> None:
    frame_checks.check_decoder(json_decoder("id bigint"), plain)


def test_typed_frames_on_a_table_with_a_key_need_an_order(keyed: Table, plain: Table) -> None:
    frame_checks.check_columns(["id", "note", *ORIGIN], None, None, keyed)
    frame_checks.check_columns(["id", "note", "version"], None, "version", keyed)
    frame_checks.check_columns(["id", "note"], None, None, plain)
    with pytest.raises(
        InvalidInput, match="keep the columns _topic, _partition, _offset in the frame, or set sequence_by="
    ):
        frame_checks.check_columns(["id", "note", "_partition", "_offset"], None, None, keyed)


def test_frames_delete_by_a_column_or_by_a_condition_on_columns_that_the_table_need_not_have(keyed: Table) -> None:
    def check(*more: str, **given: Any) -> None:
        frame_checks.check_columns(["id", "note", *more], None, more[0], keyed, **given)

    check("version", "_deleted")
    check("version", "op", "kind", delete_when="OP = 'd' or `kind` = 'gone'")
    check("version", delete_when="version < 0")
    for more, condition, unknown in (
        (("version", "op", "other"), "op = 'other'", "other"),
        (("version", "op"), None, "op"),
        (("version", "_deleted"), "version < 0", "_deleted"),
    ):
        with pytest.raises(InvalidInput, match=f"Column '{unknown}' not found"):
            check(*more, delete_when=condition)


def test_nothing_is_deleted_where_there_is_no_key(plain: Table) -> None:
    for columns, condition in ((["id", "note", "_deleted"], None), (["id", "note"], "note = 'x'")):
        with pytest.raises(InvalidInput, match="needs a primary key, but the table has none"):
            frame_checks.check_columns(columns, None, None, plain, delete_when=condition)


@pytest.mark.parametrize(
    ("spelled", "decode", "sequence_by"),
    [(as_argument, "decode=", "sequence_by="), (as_option, "the option decode", "the option sequenceBy")],
)
def test_a_column_that_the_table_lacks_is_refused_in_the_words_of_the_caller(
    plain: Table, spelled: Spelling, decode: str, sequence_by: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"set {decode} \(json\) for Kafka's own frame"):
        frame_checks.check_columns(KAFKA_COLUMNS, None, None, plain, spelled)
    with pytest.raises(InvalidInput, match="Column 'extra' not found; the table has"):
        frame_checks.check_columns(["id", "extra"], None, None, plain, spelled)
    with pytest.raises(InvalidInput, match=f"no column 'version' for {sequence_by}"):
        frame_checks.check_columns(["id", "note"], None, "version", plain, spelled)


def test_a_sink_refuses_unknown_options_and_a_source_without_a_decoder(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"Unknown argument 'max_entry'.*did you mean 'max_entry_bytes'"):
        headgate.ShardSink(str(tmp_path), max_entry=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="needs a decoder"):
        headgate.ShardSink(str(tmp_path), source=source("host:1", "t"))
    with pytest.raises(InvalidInput, match="delete_when= works only for typed frames"):
        headgate.ShardSink(str(tmp_path), decode=json_decoder(SCHEMA), delete_when="id = 1")
    with pytest.raises(InvalidInput, match="on_bad_record must be dead_letter or fail, got 'ignore'"):
        headgate.ShardSink(str(tmp_path), on_bad_record="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="enable_memtable must be true or false, got 'false'"):
        headgate.ShardSink(str(tmp_path), enable_memtable="false")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="storage_options must be a mapping") as error:
        headgate.ShardSink(str(tmp_path), storage_options=["secret"])  # type: ignore[arg-type]
    assert "secret" not in str(error.value)


def test_a_sink_is_picklable_and_opens_nothing_before_its_first_call(tmp_path: Path) -> None:
    import pickle

    sink = headgate.ShardSink(str(tmp_path / "not-there"), decode=json_decoder(SCHEMA), stream="s")
    again = pickle.loads(pickle.dumps(sink))
    assert again.options == sink.options
    assert again.stream == "s"


def test_options_replace_our_defaults_in_any_case() -> None:
    read = source("host:1", "t", startingoffsets="latest")
    assert [value for name, value in read.options.items() if name.lower() == "startingoffsets"] == ["latest"]
    assert read.options["kafka.isolation.level"] == "read_committed"
    with pytest.raises(InvalidInput, match="'Subscribe' must be given as its own argument"):
        source("host:1", "t", Subscribe="u")
