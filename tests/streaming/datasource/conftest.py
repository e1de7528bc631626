from __future__ import annotations

import json
from pathlib import Path

import pytest


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
