from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headgate.connectors.objects.local import LocalStore
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import Bytes, ObjectStore
from tests.connectors.objects.suite import ObjectStoreSuite, race


class TestMemoryStore(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        name = uuid.uuid4().hex
        yield MemoryStore(f"memory://{name}/tables/a")
        MemoryStore.drop(name)

    @pytest.fixture
    def other(self) -> Iterator[ObjectStore]:
        name = uuid.uuid4().hex
        yield MemoryStore(f"memory://{name}")
        MemoryStore.drop(name)

    @pytest.fixture
    def foreign(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(str(tmp_path))


def test_one_name_is_one_store_until_it_is_dropped() -> None:
    MemoryStore("memory://shared").put_if_absent("k", b"body")
    assert bytes(MemoryStore("memory://shared").get("k")) == b"body"
    MemoryStore.drop("shared")
    MemoryStore.drop("shared")
    assert list(MemoryStore("memory://shared").list("")) == []


class _OverwritingStore(MemoryStore):
    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self.put_overwrite(key, data)


def test_the_suite_fails_over_a_store_that_silently_overwrites() -> None:
    with pytest.raises(AssertionError):
        race(_OverwritingStore("memory://broken"))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        ObjectStoreSuite().test_a_taken_name_is_refused_and_its_object_unchanged(
            _OverwritingStore("memory://broken-too")
        )
    MemoryStore.drop("broken")
    MemoryStore.drop("broken-too")
