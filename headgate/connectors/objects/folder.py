"""A folder of another store, as a store of its own: one table's records, one stream's dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from headgate.connectors.objects.port import Bytes, ObjectInfo, ObjectStore, StoreOver, checked_folder, checked_key
from headgate.retry import Retry


class FolderStore(StoreOver):
    """Passes operations to the inner store, below the folder, and shares its counters.

    `put_next` creates folders here: dead letters have no barrier that keeps theirs.
    """

    def __init__(self, inner: ObjectStore, folder: str) -> None:
        self._prefix = checked_key(folder) + "/"
        super().__init__(inner, f"{inner.uri.rstrip('/')}/{folder}")

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._inner.put_if_absent(self._prefix + checked_key(key), data)

    def put_once(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._inner.put_once(self._prefix + checked_key(key), data)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._inner.put_overwrite(self._prefix + checked_key(key), data)

    def get(self, key: str) -> memoryview:
        return self._inner.get(self._prefix + checked_key(key))

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        return self._inner.get_range(self._prefix + checked_key(key), start, length)

    def head(self, key: str) -> ObjectInfo:
        return self._own(self._inner.head(self._prefix + checked_key(key)))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As the inner store, with keys relative to the folder."""
        return map(self._own, self._inner.list(self._prefix + checked_folder(prefix)))

    def list_keys(self, prefix: str) -> Iterator[str]:
        """As the inner store, relative to the folder."""
        return (key.removeprefix(self._prefix) for key in self._inner.list_keys(self._prefix + checked_folder(prefix)))

    def any_below(self, prefix: str) -> bool:
        return self._inner.any_below(self._prefix + checked_folder(prefix))

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self._inner.list_folders(self._prefix + checked_folder(prefix))

    def delete(self, key: str) -> None:
        self._inner.delete(self._prefix + checked_key(key))

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        if isinstance(dst_store, FolderStore):
            self._inner.copy(self._prefix + checked_key(src), dst_store._prefix + checked_key(dst), dst_store._inner)
        elif dst_store is None:
            self._inner.copy(self._prefix + checked_key(src), self._prefix + checked_key(dst))
        else:
            self._inner.copy(self._prefix + checked_key(src), dst, dst_store)

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        return self._inner.locate(self._prefix + checked_key(key) if key else self._prefix.rstrip("/"))

    def retrying(self, retry: Retry | None = None) -> ObjectStore:
        """The same folder of the inner store with that policy."""
        inner = self._inner.retrying(retry)
        return self if inner is self._inner else FolderStore(inner, self._prefix.rstrip("/"))

    def _own(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, key=info.key.removeprefix(self._prefix))
