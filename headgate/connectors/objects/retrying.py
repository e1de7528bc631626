"""A store with retries: the only place where transient store errors are retried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headgate.connectors.objects.port import Bytes, ObjectInfo, ObjectStore, StoreOver
from headgate.retry import Retry


class RetryingStore(StoreOver):
    """Passes operations to the inner store, and retries them by the policy while they raise Transient. Shares the inner
    store's counters.

    A retried put may find its own earlier try, see AlreadyExists in the port. `put_once` and `put_next` are not
    retried: they are for callers that retry themselves, because something else may end their wait. They use the same
    policy, so one name gets at most the tries of one policy.
    """

    def __init__(self, inner: ObjectStore, retry: Retry = Retry()) -> None:  # noqa: B008
        super().__init__(inner, inner.uri)
        self._retry = retry

    @property
    def retry(self) -> Retry:
        return self._retry

    def retrying(self, retry: Retry | None = None) -> ObjectStore:
        """The same store with another policy. Policies are never nested."""
        return self if retry in (None, self._retry) else self._inner.retrying(retry)

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Retried: AlreadyExists may mean an earlier try of this call."""
        self._retry.run(lambda: self._inner.put_if_absent(key, data))

    def put_once(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """One request, not retried."""
        self._inner.put_once(key, data)

    def put_next(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """One request, not retried."""
        self._inner.put_next(key, data)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._retry.run(lambda: self._inner.put_overwrite(key, data))

    def get(self, key: str) -> memoryview:
        return self._retry.run(lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        return self._retry.run(lambda: self._inner.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo:
        return self._retry.run(lambda: self._inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Retried as a whole: the complete list is in memory when this returns."""
        return iter(self._retry.run(lambda: [*self._inner.list(prefix)]))

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Retried as a whole."""
        return iter(self._retry.run(lambda: [*self._inner.list_keys(prefix)]))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Retried as a whole."""
        return iter(self._retry.run(lambda: [*self._inner.list_folders(prefix)]))

    def any_below(self, prefix: str) -> bool:
        return self._retry.run(lambda: self._inner.any_below(prefix))

    def delete(self, key: str) -> None:
        self._retry.run(lambda: self._inner.delete(key))

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        target = dst_store._inner if isinstance(dst_store, RetryingStore) else dst_store
        if target is not None and target.retry.attempts:  # a view of stores that retry by themselves
            return target.put_overwrite(dst, self.get(src))
        self._retry.run(lambda: self._inner.copy(src, dst, target))

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        return self._inner.locate(key)

    def temporaries(self) -> Iterator[ObjectInfo]:
        """Retried as a whole."""
        return iter(self._retry.run(lambda: [*self._inner.temporaries()]))

    def delete_temporary(self, key: str) -> None:
        self._retry.run(lambda: self._inner.delete_temporary(key))

    @property
    def places(self) -> Sequence[ObjectStore]:
        """The inner store's, with the same policy."""
        return tuple(place.retrying(self._retry) for place in self._inner.places)
