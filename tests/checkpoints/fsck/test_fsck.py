"""fsck: a table with a long and honest history has no findings; each damage is named by a code of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.checkpoints.fsck.findings import KINDS
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Corrupt
from headgate.table.create import create_table
from headgate.table.fsck import TableReport, fsck
from headgate.table.table import Table
from tests.checkpoints.fsck.damages import CASES, latest, put_manifest
from tests.support.histories import WAL_ONLY, copied, make, rows
from tests.support.life import SCHEMA


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Made once; every test damages a copy."""
    return make(tmp_path_factory.mktemp("fsck") / "table")


def told(report: TableReport) -> list[str]:
    return [f"{one.code} at {one.place}: {one.what}" for one in report.findings]


@pytest.mark.parametrize("name", CASES)
def test_each_damage_is_named_by_its_code(whole: Table, tmp_path: Path, name: str) -> None:
    table = copied(whole, tmp_path / "table")
    CASES[name].damage(table)
    report = fsck(table.uri)
    assert {one.code for one in report.findings} == CASES[name].codes, told(report)
    assert all(one.place and one.what and one.lost and one.do for one in report.findings)


@pytest.mark.parametrize("beyond", [2, 2**40, 2**63])
def test_a_replay_after_beyond_the_wal_is_corrupt_and_not_an_empty_table(tmp_path: Path, beyond: int) -> None:
    table = create_table(str(tmp_path / "table"), SCHEMA, primary_key="id")
    with table.writer("single", WAL_ONLY) as writer:
        writer.put(rows(1, 2))
    shard = table.home.shard("single")
    old = latest(shard)
    put_manifest(shard, replace(old, version=old.version + 1, replay_after=beyond + 1))
    there = files(table)
    for call in (
        lambda: table.scan().read_all(),
        lambda: table.get(pa.table({"id": [1]})),
        lambda: table.checkpoint(),
        lambda: table.writer("single", WAL_ONLY),
        lambda: table.writer("single"),
        lambda: StreamDriver.open(table.home, "s", "q", ["single"]),
    ):
        with pytest.raises(Corrupt, match="replay_after in the shard's manifest is wrong"):
            call()
    assert files(table) == there, "who cannot go on writes nothing"
    assert [one.code for one in fsck(table.uri).findings] == ["manifest-replay-after"]


def files(table: Table) -> set[Path]:
    return {path for path in Path(table.uri).rglob("*") if path.is_file()}


def test_every_code_has_a_damage_that_brings_it_about() -> None:
    assert set(KINDS) == {code for case in CASES.values() for code in case.codes}
