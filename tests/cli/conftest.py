from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.cli import main
from headgate.connectors.objects import open_store
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TableHome
from tests.cli.calls import ROWS, TAGS, Headgate, opened


@pytest.fixture
def headgate() -> Headgate:
    """Call the command line in this process."""

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments), prog_name="headgate", catch_exceptions=False)

    return call


@pytest.fixture
def table(tmp_path: Path) -> TableHome:
    """Where a table's shards live. There is no base dataset: the commands here must not need one."""
    return TableHome.in_store(open_store(str(tmp_path / "events")), RowSchema.of(ROWS.schema))


@pytest.fixture
def written(table: TableHome) -> TableHome:
    """Barrier 0, rows 1 and 2 (tagged), barrier 3, rows 4."""
    with opened(table) as writer:
        writer.put(ROWS)
        writer.put(ROWS, TAGS)
    with opened(table) as writer:
        writer.put(ROWS)
    return table
