"""The programs of examples/: each reads its topic to the end, once and again, and its table is what the topic says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.services import MakeTopic
from tests.support.tables import claimed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def program(name: str) -> ModuleType:
    """The program as a module: its `main` takes the session that is there."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_each_example_runs_and_runs_again(
    spark: Any, kafka_servers: str, make_topic: MakeTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = program("sample_records")

    def ran(name: str, kind: str, count: int, *more: str) -> tuple[Any, str]:
        topic = make_topic(samples.PARTITIONS)
        samples.main([kind, "--servers", kafka_servers, "--topic", topic, "--count", str(count)])
        places = ["--table", str(tmp_path / kind), "--spark-checkpoint", str(tmp_path / f"checkpoint-{kind}")]
        given = ["--servers", kafka_servers, "--topic", topic, *places, "--once", *more]
        program(name).main(given)
        return program(name).main(given), capsys.readouterr().out

    table, said = ran("append_logs", "logs", 500)
    assert said.count("500 lines") == 2
    assert sum(1 for info in claimed(table) if info.sstables) == 0, "WAL only"

    table, said = ran("upserts_with_search", "orders", 400)
    newest = {key: value for key, value in samples.orders(400)}
    wanted = sorted(key for key, value in newest.items() if value is not None)
    assert sorted(table.scan(columns=["id"]).read_all().column("id").to_pylist()) == wanted
    assert "late delivery" in said

    table, said = ran("cdc_debezium", "customers", 300)
    rows = {row["id"]: row["email"] for row in table.scan().read_all().to_pylist()}
    assert rows == {
        key: f"new-{key}@example.com" if key % 3 == 0 else f"{key}@example.com" for key in range(300) if key % 5
    }
    assert said.count(f"{len(rows)} customers") == 2

    example, topic = program("semantic_search"), make_topic(samples.PARTITIONS)
    places = ["--table", str(tmp_path / "reviews"), "--spark-checkpoint", str(tmp_path / "checkpoint-reviews")]
    given = ["--servers", kafka_servers, "--topic", topic, *places, "--search", "late deliveries"]
    table = example.main([*given, "--samples", "200", "--once"])
    assert table.count() == 200
    said = capsys.readouterr().out
    for title in ("by meaning", "by words", "by both"):
        assert "delivery" in said.partition(title)[2].splitlines()[1], "by pieces of words, by their stems, by both"
    table = example.main([*given, "--embedding", "semantic_search:pieces"])
    said = capsys.readouterr().out
    assert table.count() == 201
    assert "produced and found by meaning after" in said
    assert "late deliveries, said at" in said.partition("by both")[2].splitlines()[1]
