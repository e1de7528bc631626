from __future__ import annotations

from typing import Any

import pytest

from headgate.console.watch.verdict import StreamFacts, Verdict, stream_verdict, table_verdict

RUNS: dict[str, Any] = {"seen_ago": 1.0, "batches": 9, "committed_ago": 2.0, "heard_ago": 5.0, "records": 900}


@pytest.mark.parametrize(
    ("facts", "word", "why"),
    [
        ({"lag_rows": 0, "lag_seconds": 0.0}, "fine", "everything in Kafka is in the table"),
        ({"lag_rows": 70, "lag_seconds": 3.0}, "fine", "70 rows are on their way"),
        ({}, "fine", "batches are committed"),
        ({"batches": 0, "committed_ago": None}, "fine", "first batch"),
        ({"lag_rows": 5000, "lag_seconds": 300.0}, "behind", "5,000 rows wait in Kafka, the oldest for 5 min"),
        (
            {"lag_rows": 5000, "lag_seconds": 3.0, "committed_ago": 900.0, "heard_ago": None},
            "stopped",
            "5,000 rows wait",
        ),
        ({"committed_ago": 900.0, "heard_ago": 900.0}, "stopped", "no batch for 15 min"),
        ({"committed_ago": 900.0, "heard_ago": 3.0}, "fine", "batches are committed"),
        ({"committed_ago": 900.0, "heard_ago": None, "lag_rows": 0}, "fine", "everything"),
        ({"committed_ago": 900.0, "heard_ago": None, "is_here": True}, "fine", "batches are committed"),
        ({"released": True, "lag_rows": 12}, "stopped", "stopped cleanly: its shards are released; 12 rows wait"),
        ({"released": True, "is_here": True}, "fine", "batches are committed"),
        ({"taken_over": "shard a is at epoch 3"}, "fenced", "epoch 3"),
        ({"failure": "Fenced: a successor runs the stream"}, "fenced", "successor"),
        ({"failure": "DataLoss: an offset is gone"}, "attention", "DataLoss"),
        ({"failing": ("flush (Transient)",)}, "attention", "flush (Transient) fails"),
        ({"delayed": "2 GiB unflushed"}, "attention", "batches wait: 2 GiB unflushed"),
        ({"notes": ("restart it",)}, "attention", "restart it"),
        ({"problems": ("a hole",)}, "attention", "a hole"),
        ({"dead_letters": 100}, "attention", "10.0% of the last 1,000 records are dead letters"),
        ({"dead_letters": 5}, "fine", "batches are committed"),
        ({"error": "Transient: the store is away"}, "unknown", "the store is away"),
        ({"seen_ago": None}, "unknown", "not been looked at"),
        ({"seen_ago": 4000.0}, "unknown", "is 67 min old"),
        ({"kafka_error": "no broker"}, "attention", "no broker"),
    ],
)
def test_a_stream_has_a_word_and_the_reason(facts: dict[str, Any], word: str, why: str) -> None:
    found = stream_verdict(StreamFacts(**{**RUNS, **facts}))
    assert found.word == word
    assert why in " / ".join(found.why)


def test_the_worst_decides_and_every_reason_is_told() -> None:
    found = stream_verdict(StreamFacts(**RUNS, lag_rows=10, lag_seconds=600.0, failing=("flush (Transient)",)))
    assert found.word == "attention"
    assert len(found.why) == 2


def test_a_table_is_as_its_worst_stream() -> None:
    fine, behind = Verdict("fine"), Verdict("behind", ("x",))
    assert table_verdict([fine, behind], [], None, looked=True) == behind
    assert table_verdict([fine], ["a hole"], None, looked=True).word == "attention"
    assert table_verdict([], [], None, looked=True).word == "fine"
    assert table_verdict([], [], None, looked=False).word == "unknown"
    assert table_verdict([fine], [], "Corrupt: x", looked=True).word == "unknown", "what cannot be read is not fine"
