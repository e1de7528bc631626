"""The options by which a stream is told when to take checkpoints."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.durations import seconds_of
from headgate.errors import InvalidInput
from headgate.retry import Retry
from headgate.streaming.options import parse_options, session_defaults, sink_options


@pytest.mark.parametrize(
    ("given", "seconds"), [(0, 0.0), ("10 minutes", 600.0), ("90s", 90.0), ("NEVER", float("inf")), (1.5, 1.5)]
)
def test_an_interval_is_seconds_or_words(given: object, seconds: float) -> None:
    assert sink_options({"checkpoint_interval": given}).checkpoint_seconds == seconds


@pytest.mark.parametrize("given", [-1, "soon", "10 parsecs", True, None])
def test_what_is_no_interval_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match="checkpoint_interval must be a duration"):
        sink_options({"checkpoint_interval": given})


def test_every_face_says_the_same() -> None:
    by_option = sink_options(parse_options({"checkpointinterval": "5m", "keepcheckpoints": "3"}))
    by_session = sink_options({}, session_defaults({"spark.headgate.checkpointInterval": "5 minutes"}))
    by_argument = sink_options({"checkpoint_interval": timedelta(minutes=5), "keep_checkpoints": 3})
    assert by_option.checkpoint_seconds == by_session.checkpoint_seconds == by_argument.checkpoint_seconds == 300
    assert by_option.keep_checkpoints == by_argument.keep_checkpoints == 3
    assert sink_options({}).checkpoint_seconds == 600
    assert sink_options({}).keep_checkpoints == 2
    for wrong in ("0", "-1", "two"):
        with pytest.raises(InvalidInput, match="keepCheckpoints"):
            parse_options({"keepCheckpoints": wrong})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("600", 600), ("1.5 h", 5400), (" 7D ", 604_800), ("2 weeks", 1_209_600), (3, 3), (timedelta(days=1), 86_400)],
)
def test_lengths_of_time(text: str | float | timedelta, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1 fortnight", "-1s", "1s 2m", float("nan"), float("inf"), timedelta(-1)])
def test_what_is_no_length_of_time(text: str | float | timedelta) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        seconds_of(text)


def test_patience_with_the_store_is_a_length_of_time_and_has_an_end() -> None:
    assert sum(sink_options({}).retry.delays()) >= 30
    assert sink_options({"store_patience": 0}).retry.attempts == 0
    assert sink_options(parse_options({"storePatience": "2 minutes"})).retry == Retry.lasting(120)
    for wrong in ("never", -1, True):
        with pytest.raises(InvalidInput, match="store_patience must be a duration"):
            sink_options({"store_patience": wrong})


def test_garbage_is_collected_every_hour_unless_somebody_says_otherwise() -> None:
    assert sink_options({}).gc_seconds == 3600
    assert sink_options({"gc_interval": "never"}).gc_seconds == float("inf")
    assert sink_options({}, session_defaults({"spark.headgate.gcInterval": "6 hours"})).gc_seconds == 6 * 3600
    with pytest.raises(InvalidInput, match="gc_interval must be a duration"):
        sink_options({"gc_interval": 0})
