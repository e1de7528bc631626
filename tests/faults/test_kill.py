"""kill -9 of a real writing process on local disk: every acknowledged row is there, none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.killing import kill_again_and_again


def test_ten_rounds_of_kill_9_lose_no_acknowledged_row(tmp_path: Path) -> None:
    kill_again_and_again(str(tmp_path), 10)


@pytest.mark.deep
def test_two_hundred_rounds_of_kill_9_lose_no_acknowledged_row(tmp_path: Path) -> None:
    kill_again_and_again(str(tmp_path), 200)
