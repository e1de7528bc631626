"""fsck: a table with a long and honest history has no findings; each damage is named by a code of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from damages import CASES
from fsck_tables import copied, make

from headgate.checkpoints.findings import KINDS
from headgate.streaming.fsck import TableReport, fsck
from headgate.table import Table


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


def test_every_code_has_a_damage_that_brings_it_about() -> None:
    assert set(KINDS) == {code for case in CASES.values() for code in case.codes}
