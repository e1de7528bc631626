from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headgate import clock
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore

if TYPE_CHECKING:
    from tests.streaming.maintenance.maintained import HandClock


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """A fresh store in memory."""
    name = uuid.uuid4().hex
    yield MemoryStore(f"memory://{name}")
    MemoryStore.drop(name)


@pytest.fixture
def by_hand() -> Iterator[HandClock]:
    """The clock of the test and of all threads that it starts."""
    from tests.streaming.maintenance.maintained import HandClock

    hand = HandClock()
    with clock.using(hand):
        yield hand
