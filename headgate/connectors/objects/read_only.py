"""A read-only store: writes fail before anything changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from headgate.connectors.objects.port import Bytes, ObjectInfo, ObjectStore, StoreOver
from headgate.errors import InvalidInput
from headgate.retry import Retry


class ReadOnlyStore(StoreOver):
    """Passes reads to the inner store and shares its counters; every write raises InvalidInput."""

    def __init__(self, inner: ObjectStore, why: str) -> None:
        """`why` is one sentence that says what was opened for reading only."""
        super().__init__(inner, inner.uri)
        self._why = why

    def get(self, key: str) -> memoryview:
        return self._inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        return self._inner.get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo:
        return self._inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._inner.list(prefix)

    def list_keys(self, prefix: str) -> Iterator[str]:
        return self._inner.list_keys(prefix)

    def any_below(self, prefix: str) -> bool:
        return self._inner.any_below(prefix)

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self._inner.list_folders(prefix)

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        return self._inner.locate(key)

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> NoReturn:
        self._refuse(key)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> NoReturn:
        self._refuse(key)

    def delete(self, key: str) -> NoReturn:
        self._refuse(key)

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        """Copies to another store as the inner store does; raises InvalidInput within this one."""
        if dst_store is None or dst_store is self:
            self._refuse(dst)
        self._inner.copy(src, dst, dst_store)

    def retrying(self, retry: Retry | None = None) -> ObjectStore:
        """The inner store with that policy, for reading only."""
        inner = self._inner.retrying(retry)
        return self if inner is self._inner else ReadOnlyStore(inner, self._why)

    def _refuse(self, key: str) -> NoReturn:
        raise InvalidInput(
            self._why,
            store=self.uri,
            key=key,
            advice="open the table by itself, without a checkpoint, to write to it; nothing was written",
        )
