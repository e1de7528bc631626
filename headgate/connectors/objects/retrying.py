"""A store with retries: the only place where transient store errors are retried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headgate.connectors.objects.port import Bytes, ObjectInfo, ObjectStore, StoreOver
from headgate.retry import Retry


class RetryingStore(StoreOver):
    """All operations are the inner store's, retried by the policy while they raise Transient; the counters are the
    inner store's.

    A retried put may meet its own earlier try, see AlreadyExists in the port. `put_once` is not retried: it is for
    callers that pause themselves, because something else may end their wait. They use the same policy, so that one name
    sees at most one policy's tries.
    """

    def __init__(self, inner: ObjectStore, retry: Retry = Retry()) -> None:  # noqa: B008
        super().__init__(inner, inner.uri)
        self._retry = retry

    @property
    def retry(self) -> Retry:
        return self._retry

    def retrying(self, retry: Retry | None = None) -> ObjectStore:
        """The same store under another policy. Never a policy inside a policy."""
        return self if retry in (None, self._retry) else self._inner.retrying(retry)

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Repeated: AlreadyExists may mean an earlier try of this call."""
        self._retry.run(lambda: self._inner.put_if_absent(key, data))

    def put_once(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """One request."""
        self._inner.put_once(key, data)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._retry.run(lambda: self._inner.put_overwrite(key, data))

    def get(self, key: str) -> memoryview:
        return self._retry.run(lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        return self._retry.run(lambda: self._inner.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo:
        return self._retry.run(lambda: self._inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Repeated as a whole, so that it is in memory when this returns."""
        return iter(self._retry.run(lambda: [*self._inner.list(prefix)]))

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Repeated as a whole."""
        return iter(self._retry.run(lambda: [*self._inner.list_keys(prefix)]))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Repeated as a whole."""
        return iter(self._retry.run(lambda: [*self._inner.list_folders(prefix)]))

    def any_below(self, prefix: str) -> bool:
        return self._retry.run(lambda: self._inner.any_below(prefix))

    def delete(self, key: str) -> None:
        self._retry.run(lambda: self._inner.delete(key))

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        target = dst_store._inner if isinstance(dst_store, RetryingStore) else dst_store
        if target is not None and target.retry.attempts:  # a view of stores that repeat by themselves
            return target.put_overwrite(dst, self.get(src))
        self._retry.run(lambda: self._inner.copy(src, dst, target))

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        return self._inner.locate(key)

    def temporaries(self) -> Iterator[ObjectInfo]:
        """Repeated as a whole."""
        return iter(self._retry.run(lambda: [*self._inner.temporaries()]))

    def delete_temporary(self, key: str) -> None:
        self._retry.run(lambda: self._inner.delete_temporary(key))

    @property
    def places(self) -> Sequence[ObjectStore]:
        """The inner store's, under the same policy."""
        return tuple(place.retrying(self._retry) for place in self._inner.places)
