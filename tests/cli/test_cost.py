"""`headgate cost`: what it prints."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headgate.cli import main


def test_the_command_prints_both_ways_to_shard_and_takes_other_prices() -> None:
    words = ["cost", "--partitions", "32", "--trigger", "10", "--shards", "8", "--rows-per-day", "50000000"]
    text = CliRunner().invoke(main, words)
    assert text.exit_code == 0, text.output
    assert "entries of" in text.output
    plain = json.loads(CliRunner().invoke(main, [*words, "--output", "json"]).stdout)
    by_partition, bucket = plain["scenarios"]
    assert [(one["sharding"], one["shards"]) for one in plain["scenarios"]] == [("by_partition", 32), ("bucket", 8)]
    assert (by_partition["puts_per_batch"], bucket["puts_per_batch"]) == (33, 9)
    assert bucket["put"] == pytest.approx(sum(line["put"] for line in bucket["lines"]), abs=10)
    free = ["--put-price", "0", "--get-price", "0", "--list-price", "0", "--storage-price", "1", "--keep", "1d"]
    priced = json.loads(CliRunner().invoke(main, [*words, *free, "--output", "json"]).stdout)
    assert [one["dollars"] for one in priced["scenarios"]] == [10.0, 10.0], "50 million rows of 200 bytes are 10 GB"
