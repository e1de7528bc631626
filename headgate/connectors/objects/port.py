"""The interface through which the rest of the package uses an object store.

Every store keeps this contract, and one abstract test suite checks it:

1. `put_if_absent` stores the whole object or nothing. Of any number of callers exactly one succeeds; the others get
   AlreadyExists. AlreadyExists may also mean the caller's own earlier try whose response was lost: compare ids.
2. When a put returns, the object survives any crash; on local disk a power loss too. This holds for puts of this
   interface: Lance's own writes are durable on every store except a local disk, where
   `connectors.lance.base.synced` syncs them.
3. `get`, `head` and `list` see every object whose put has returned.
4. Keys are relative to the root, use '/', and never leave it.
5. The bytes that `get` returns are aligned to 8 bytes in memory, as Arrow's own files are: Lance panics on rows that
   are not.
6. Before the first operation a store opens nothing, connects to nothing and imports no native code. So it may be
   pickled, and made before a fork and used after it.
7. A store sends each request once. Only the `RetryingStore` around it repeats what raises Transient; `open_store`
   returns one.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import pyarrow as pa

from headgate.errors import InvalidInput
from headgate.retry import Retry

_NO_NAMES = frozenset(("", ".", ".."))
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Bytes: TypeAlias = bytes | memoryview | pa.Buffer
"""What a put takes: one buffer, or several that are stored one after the other."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object, as head and list return it. `modified` is by the store's clock."""

    key: str
    size: int
    modified: datetime


class ObjectStore(ABC):
    """One root (directory, bucket prefix, memory) and its operations. Thread-safe and picklable."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        """The root's URI without credentials, for logs and errors."""
        self._operations: Counter[str] = Counter()
        self._counter_lock = threading.Lock()

    # -- verbs ---------------------------------------------------------------

    @abstractmethod
    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Store the object if the name is free. Raises AlreadyExists, Transient, StoreFull, PermissionDenied."""

    def put_once(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """`put_if_absent` in one request, even if this store retries."""
        self.put_if_absent(key, data)

    def put_next(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """`put_once` beside an earlier object. Raises NotFound, and stores nothing, if the folder is gone: on local
        disk, where a table was dropped. A store without folders cannot tell, and stores the object.
        """
        self.put_once(key, data)

    @abstractmethod
    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Store or replace the object. Only for hints: no protocol step may depend on them."""

    @abstractmethod
    def get(self, key: str) -> memoryview:
        """The whole object. Raises NotFound."""

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Up to `length` bytes from `start`; shorter at the end, empty past it. Raises NotFound."""

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Size and time. Raises NotFound."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with the folder `prefix` ('' or ending in '/'), recursively, in no order."""

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Only the keys of `list`: on local disk this is much cheaper."""
        return (info.key for info in self.list(prefix))

    def any_below(self, prefix: str) -> bool:
        """True if the folder holds an object. One request, however many objects there are."""
        return next(self.list_keys(prefix), None) is not None

    @abstractmethod
    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly below the folder `prefix`, without '/'."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object. A missing object is not an error."""

    @abstractmethod
    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        """Copy an object, replacing `dst`; the source is kept. On the server if both are in one S3 bucket."""

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        """URI and storage options with which pylance opens the same folder. Raises InvalidInput if it cannot."""
        raise InvalidInput("Lance datasets cannot be kept in this kind of store.", store=self.uri, key=key)

    def temporaries(self) -> Iterator[ObjectInfo]:
        """Files of interrupted puts, if this kind of store leaves any. No other operation returns them."""
        return iter(())

    def delete_temporary(self, key: str) -> None:
        """Remove a temporary file. A missing file is not an error."""
        raise InvalidInput("This kind of store leaves no temporaries.", store=self.uri, key=key)

    @property
    def places(self) -> Sequence[ObjectStore]:
        """The stores that hold the objects of `list`: this one, unless it combines several."""
        return (self,)

    @property
    def is_near(self) -> bool:
        """True if requests are so fast that threads cost more than they save."""
        return False

    # -- retrying ------------------------------------------------------------

    @property
    def retry(self) -> Retry:
        """The policy by which this store retries operations that raise Transient."""
        return Retry(attempts=0)

    def retrying(self, retry: Retry | None = None) -> ObjectStore:
        """This store with a retry policy; without one, with its current policy, else the default."""
        from headgate.connectors.objects.retrying import RetryingStore

        return RetryingStore(self, retry or Retry())

    # -- counting ------------------------------------------------------------

    @property
    def counting(self) -> ObjectStore:
        """The store that counts this one's requests: itself, or the store that it passes them to."""
        return self

    def operations(self) -> Mapping[str, int]:
        """Requests of this instance by operation: "put", "get", "head", "list", "delete", "copy"."""
        with self._counter_lock:
            return dict(self._operations)

    def reset_operations(self) -> None:
        """Start counting from zero."""
        with self._counter_lock:
            self._operations.clear()

    def _count(self, verb: str, times: int = 1) -> None:
        with self._counter_lock:
            self._operations[verb] += times

    # -- pickling: without counters and locks ----------------------------------

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        del state["_operations"], state["_counter_lock"]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._operations = Counter()
        self._counter_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"


class StoreOver(ObjectStore):
    """A store that passes its operations to another one and shares its counters."""

    def __init__(self, inner: ObjectStore, uri: str) -> None:
        super().__init__(uri)
        self._inner = inner

    @property
    def is_near(self) -> bool:
        return self._inner.is_near

    @property
    def retry(self) -> Retry:
        return self._inner.retry

    @property
    def counting(self) -> ObjectStore:
        return self._inner.counting

    def operations(self) -> Mapping[str, int]:
        return self._inner.operations()

    def reset_operations(self) -> None:
        self._inner.reset_operations()


def checked_key(key: str) -> str:
    """Returns the key if it stays below the root and every store can hold it. Raises InvalidInput."""
    if not key or not _NO_NAMES.isdisjoint(key.split("/")) or _CONTROL.search(key) is not None or not _is_utf8(key):
        raise InvalidInput(
            f"Invalid object name {key[:200]!r}: it is empty, absolute, has an empty, '.' or '..' part, a "
            "control character, or is not valid Unicode."
        )
    return key


def checked_folder(prefix: str) -> str:
    """Returns the folder prefix if it is '' or a key followed by '/'. Raises InvalidInput."""
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidInput(f"The folder {prefix[:200]!r} must end in '/'.")
        checked_key(prefix[:-1])
    return prefix


def checked_range(start: int, length: int) -> None:
    """Raises InvalidInput for a negative range."""
    if start < 0 or length < 0:
        raise InvalidInput(f"A range must not have a negative start or length, got {start}, {length}.")


def _is_utf8(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_buffers(data: Bytes | Sequence[Bytes]) -> list[memoryview]:
    """The parts of a put as flat byte views, without copying."""
    parts = [data] if isinstance(data, (bytes, memoryview, pa.Buffer)) else list(data)
    return [memoryview(part).cast("B") if not isinstance(part, bytes) else memoryview(part) for part in parts]
