from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.indexes import Staged, make_base, reference, stage


@pytest.fixture(scope="session")
def _staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    path = tmp_path_factory.mktemp("staged")
    uri = make_base(path)
    # Fragments in no order: a part's id tells the first one of its builder.
    index_id, built = stage(uri, [[2], [0], [3], [1]])
    return Staged(uri, index_id, built, reference(uri, path))


@pytest.fixture
def copy_staged(_staged: Staged, tmp_path: Path) -> Callable[[], Staged]:
    """Makes a copy of its own, as often as it is called."""

    def copy() -> Staged:
        uri = str(tmp_path / f"copy-{uuid.uuid4().hex[:8]}")
        shutil.copytree(_staged.uri, uri)
        return Staged(uri, _staged.index_id, _staged.built, _staged.answers)

    return copy


@pytest.fixture
def staged(copy_staged: Callable[[], Staged]) -> Staged:
    """One copy."""
    return copy_staged()
