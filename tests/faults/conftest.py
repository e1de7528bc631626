from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore

HERE = Path(__file__).parent

# Tables with everything in them, and the stream without Spark, are those of other folders.
sys.path[:0] = [str(HERE), str(HERE.parent / "checkpoints"), str(HERE.parent / "streaming")]


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """A fresh store in memory."""
    name = uuid.uuid4().hex
    yield MemoryStore(f"memory://{name}")
    MemoryStore.drop(name)


@pytest.fixture
def shard_id() -> uuid.UUID:
    return uuid.uuid4()
