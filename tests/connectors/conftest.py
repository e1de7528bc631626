from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore


@pytest.fixture
def foreign() -> Iterator[ObjectStore]:
    """A store of another kind, to copy to and from."""
    yield MemoryStore("memory://foreign")
    MemoryStore.drop("foreign")
