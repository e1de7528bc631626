from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """A fresh store in memory."""
    name = uuid.uuid4().hex
    yield MemoryStore(f"memory://{name}")
    MemoryStore.drop(name)


@pytest.fixture
def shard_id() -> uuid.UUID:
    return uuid.uuid4()
