from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate.streaming.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A Spark of this module, with two cores and tasks that may be tried four times."""
    from pyspark.sql import SparkSession

    if (left := SparkSession.getActiveSession()) is not None:
        left.stop()
    session = local_session(2)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


class Files:
    """A folder that a stream reads, one file a batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def put(self, name: str, ids: range) -> None:
        lines = "\n".join(json.dumps({"id": i, "note": f"{name} {i}"}) for i in ids)
        path = self.folder.parent / f"{name}.new"
        path.write_text(lines)
        path.rename(self.folder / f"{name}.json")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "files")
