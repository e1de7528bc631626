"""One table defines the options: Python arguments, data source options and session defaults say the same."""

from __future__ import annotations

import pytest

from headgate.errors import InvalidInput
from headgate.streaming.datasource.settings import Settings
from headgate.streaming.options import OPTIONS, Option, parse_options, session_defaults, sink_options

PLACES = {"path": "/t", "checkpointLocation": "/c"}


def test_a_sink_and_the_data_source_make_the_same_value_of_the_same_options() -> None:
    texts = {"streamName": "s", "onBadRecord": "fail", "sequenceBy": "at", "compression": "zstd"}
    texts |= {"maxMemtableSize": "2m", "maxEntryBytes": "1m", "checkpointLocation": "/c", "storage.region": "x"}
    by_options = Settings.of({"path": "/t", **{n: t for n, t in texts.items() if n != "maxMemtableSize"}}, {}).options
    by_arguments = sink_options(
        {
            "stream": "s",
            "enable_memtable": False,
            "on_bad_record": "fail",
            "sequence_by": "at",
            "compression": "zstd",
            "max_entry_bytes": 1 << 20,
            "checkpoint_location": "/c",
            "storage_options": {"region": "x"},
        }
    )
    assert by_options == by_arguments
    assert sink_options(parse_options(texts)).max_memtable_size == 2 << 20


def test_arguments_come_before_the_session_and_the_session_before_our_defaults() -> None:
    session = session_defaults({"spark.headgate.streamName": "session", "spark.headgate.compression": "lz4"})
    merged = sink_options({"stream": "argument"}, session)
    assert (merged.stream, merged.compression, merged.on_bad_record) == ("argument", "lz4", "dead_letter")
    assert sink_options({"compression": None}, session).compression is None, "an argument that says none"


def test_what_a_query_reads_and_where_it_writes_has_no_session_default() -> None:
    for name in ("path", "decode", "checkpointLocation", "queryName", "storage.region", "kafka.bootstrap.servers"):
        with pytest.raises(InvalidInput, match="Unknown Spark setting"):
            session_defaults({f"spark.headgate.{name}": "x"})


def test_names_are_camel_case_of_the_arguments_and_differ_by_more_than_case() -> None:
    renamed = {"table": "path", "stream": "streamName", "storage_options": "storage.", "kafka": "kafka."}
    for option in OPTIONS:
        first, *rest = option.argument.split("_")
        assert option.name == renamed.get(option.argument, first + "".join(word.title() for word in rest))
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.default is not None], ids=lambda option: option.name)
def test_a_default_is_a_value_that_its_own_parser_gives(option: Option) -> None:
    assert option.kind.parse(str(option.default).lower()) == option.default
    assert option.kind.accepts(option.default)


def test_options_are_found_in_any_case_and_come_before_session_defaults() -> None:
    given = {"streamname": "orders", "MAXENTRYBYTES": "64m", "Storage.aws_region": "x", "storage.endpoint": "y"}
    defaults = session_defaults({"spark.headgate.streamName": "other", "spark.headgate.onBadRecord": "fail", "a": "b"})
    assert parse_options(given, defaults) == {
        "stream": "orders",
        "max_entry_bytes": 64 << 20,
        "on_bad_record": "fail",
        "storage_options": {"aws_region": "x", "endpoint": "y"},
    }


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("streamnam", "streamName"),
        ("stream", "streamName"),
        ("max_entry_bytes", "maxEntryBytes"),
        ("checkpointlocatoin", "checkpointLocation"),
        ("storage", "storage."),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(given: str, nearest: str) -> None:
    with pytest.raises(InvalidInput, match=f"did you mean '{nearest}'") as error:
        parse_options({given: "secret-value"})
    assert "secret-value" not in str(error.value)


def test_an_unknown_setting_of_the_session_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidInput, match=r"did you mean 'spark\.headgate\.onBadRecord'"):
        session_defaults({"spark.headgate.onBadRecords": "fail"})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("enableMemtable", "yes", "true or false"),
        ("maxEntryBytes", "0", "above zero"),
        ("maxEntryBytes", "many", "above zero"),
        ("onBadRecord", "skip", "dead_letter or fail"),
        ("decode", "avro", "json"),
        ("compression", "gzip", "lz4 or zstd"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_can(name: str, value: str, allowed: str) -> None:
    with pytest.raises(InvalidInput, match=allowed):
        parse_options({name: value})


@pytest.mark.parametrize("given", [{"enableMemtable": "true"}, {"maxMemtableSize": "1m"}])
def test_the_data_source_refuses_memtables_where_they_are_asked_for(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="does not support MemTables"):
        Settings.of({**PLACES, **given}, {})
    assert not Settings.of(PLACES, given).options.enable_memtable


@pytest.mark.parametrize("missing", PLACES)
def test_the_data_source_refuses_places_that_are_missing_or_relative(missing: str) -> None:
    with pytest.raises(InvalidInput, match="is missing"):
        Settings.of({name: place for name, place in PLACES.items() if name != missing}, {})
    with pytest.raises(InvalidInput, match="must be an absolute path"):
        Settings.of({**PLACES, missing: "here"}, {})


def test_a_stream_is_called_by_its_option_then_by_its_query() -> None:
    assert Settings.of(PLACES, {}).stream == "default"
    assert Settings.of({**PLACES, "queryname": "q"}, {}).stream == "q"
    assert Settings.of({**PLACES, "queryname": "q", "streamname": "s"}, {}).stream == "s"
