from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore

if TYPE_CHECKING:
    pass

HERE = Path(__file__).parent

# The faulty store and the producers of other folders serve these tests as well.
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "faults"),
    str(HERE.parent / "checkpoints"),
    str(HERE.parent / "connectors" / "kafka"),
]


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """A fresh store in memory."""
    name = uuid.uuid4().hex
    yield MemoryStore(f"memory://{name}")
    MemoryStore.drop(name)
