from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.connectors.objects import open_store
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """A fresh store in memory."""
    name = uuid.uuid4().hex
    yield MemoryStore(f"memory://{name}")
    MemoryStore.drop(name)


@pytest.fixture(params=["memory", "local"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, store: ObjectStore) -> ObjectStore:
    """Both of the stores that need no server."""
    return store if request.param == "memory" else open_store(str(tmp_path / "table"))
