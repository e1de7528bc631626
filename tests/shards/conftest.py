from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore

# The faulty store and the closing checks serve these tests as well.
sys.path.insert(0, str(Path(__file__).parent.parent / "faults"))


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """A fresh store in memory."""
    name = uuid.uuid4().hex
    yield MemoryStore(f"memory://{name}")
    MemoryStore.drop(name)


@pytest.fixture
def shard_id() -> uuid.UUID:
    return uuid.uuid4()
