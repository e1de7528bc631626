"""What `import headgate` gives: completion, types, and nothing loaded before it is used."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import headgate
from headgate.streaming.arguments import SinkArguments
from headgate.streaming.options import SinkOptions

LIGHT = """
import sys, headgate
assert not {"pyspark", "lance", "pyarrow"} & set(sys.modules), "loaded before it was used"
assert headgate.errors.Fenced.__name__ == "Fenced"
"""


def test_completion_shows_every_name_and_each_can_be_had() -> None:
    assert {"create_table", "errors", "ShardSink", "CompactLimits", "SinkOptions"} <= set(dir(headgate))
    for name in headgate.__all__:
        assert getattr(headgate, name) is not None
    assert headgate.__version__ == version("headgate")


def test_an_import_loads_neither_spark_nor_lance() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_types_travel_with_the_package() -> None:
    assert (Path(headgate.__file__).parent / "py.typed").exists()


OPERANDS = {
    "create_table": ["uri", "schema"],
    "open_table": ["uri"],
    "fsck": ["table"],
    "recover": ["table"],
    "rewind": ["table"],
    "verify": ["table"],
    "replay_dead_letters": ["table"],
    "forward_dead_letters": ["table"],
    "dead_letter_summary": ["table"],
    "by_shard": ["frame", "table"],
    "rebuild_ledger": ["spark", "table"],
    "read_log": ["spark", "table"],
    "search_df": ["spark", "table", "text"],
    "ShardSink": ["table"],
    "DeltaMirror": ["table", "target"],
    "ShardWriter.open": ["table", "shard", "config"],
    "Table.scan": [],
    "Table.count": [],
    "Table.head": ["n"],
    "Table.to_arrow": [],
    "Table.to_pandas": [],
    "Table.to_polars": [],
    "Table.search": ["text"],
    "Table.get": ["keys"],
    "Table.upsert": ["rows"],
    "Table.delete": ["keys"],
    "Table.shards": [],
    "Table.checkpoint": ["scope"],
    "Table.clone": ["uri"],
    "Table.compact": [],
    "Table.collect_garbage": [],
    "Table.build_index": ["column"],
}
"""What a call is about: all else is named."""

ORDER = ["columns", "filter", "limit", "wal_uri", "storage_options", "wal_storage_options", "progress"]
"""Of arguments that several calls take."""


@pytest.mark.parametrize("name", OPERANDS)
def test_what_a_call_is_about_comes_first_and_all_else_is_named_in_one_order(name: str) -> None:
    found: Any = headgate
    for part in name.split("."):
        found = getattr(found, part)
    parameters = [one for one in inspect.signature(found).parameters.values() if one.name != "self"]
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional == OPERANDS[name]
    named = [one.name for one in parameters if one.name in ORDER]
    assert named == [one for one in ORDER if one in named]


def test_the_arguments_that_an_editor_shows_are_the_options_of_a_sink() -> None:
    shown, known = get_type_hints(SinkArguments), get_type_hints(SinkOptions)
    for path in ("ledger", "checkpoint_location"):
        known[path] = known[path] | os.PathLike[str]
    assert list(shown) == [one.name for one in fields(SinkOptions)]
    assert {name: set(get_args(kind)) or kind for name, kind in shown.items()} == {
        name: set(get_args(kind)) or kind for name, kind in known.items()
    }
