"""Objects in the memory of this process, for tests and examples.

All instances of one `memory://name` in a process, unpickled ones too, share the same objects. Nothing outlives the
process.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile

from headgate import clock
from headgate.connectors.objects.port import (
    Bytes,
    ObjectInfo,
    ObjectStore,
    as_buffers,
    checked_folder,
    checked_key,
    checked_range,
)
from headgate.errors import AlreadyExists, InvalidInput, NotFound

_URI = re.compile(r"memory://([^/]+)(?:/(.*))?")


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    modified: datetime


@dataclass(frozen=True, slots=True)
class _Contents:
    objects: dict[str, _Stored] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """Sorted, so that a LIST visits only the keys that it returns."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, name: str, stored: _Stored) -> None:
        if name not in self.objects:
            insort(self.names, name)
        self.objects[name] = stored

    def drop(self, name: str) -> None:
        if self.objects.pop(name, None) is not None:
            del self.names[bisect_left(self.names, name)]

    def below(self, prefix: str) -> list[tuple[str, _Stored]]:
        places = range(bisect_left(self.names, prefix), len(self.names))
        names = takewhile(lambda name: name.startswith(prefix), (self.names[place] for place in places))
        return [(name, self.objects[name]) for name in names]


_by_name: dict[str, _Contents] = {}


class MemoryStore(ObjectStore):
    """`memory://name` or `memory://name/folder`."""

    def __init__(self, uri: str) -> None:
        match = _URI.fullmatch(uri)
        if match is None:
            raise InvalidInput("A memory URI must have a name: memory://name or memory://name/folder.", uri=uri)
        self._name = match[1]
        folder = (match[2] or "").rstrip("/")
        self._folder = checked_key(folder) + "/" if folder else ""
        super().__init__(uri)

    @staticmethod
    def drop(name: str) -> None:
        """Delete every object of `memory://name`. An unknown name is not an error."""
        _by_name.pop(name, None)

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Store the object if the name is free."""
        full, stored = self._full(key), _stored(data)
        self._count("put")
        contents = self._contents
        with contents.lock:
            if full in contents.objects:
                raise AlreadyExists("An object with that name exists already.", store=self.uri, key=key)
            contents.put(full, stored)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Store or replace the object."""
        full, stored = self._full(key), _stored(data)
        self._count("put")
        with self._contents.lock:
            self._contents.put(full, stored)

    def get(self, key: str) -> memoryview:
        """The whole object. Raises NotFound."""
        full = self._full(key)
        self._count("get")
        return memoryview(self._found(full, key).data)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Up to `length` bytes from `start`; shorter at the end, empty past it. Raises NotFound."""
        checked_range(start, length)
        return self.get(key)[start : start + length]

    def head(self, key: str) -> ObjectInfo:
        """Size and time. Raises NotFound."""
        full = self._full(key)
        self._count("head")
        stored = self._found(full, key)
        return ObjectInfo(key, len(stored.data), stored.modified)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the folder, recursively, as of the call."""
        checked_folder(prefix)
        self._count("list")
        return iter(self._below(prefix))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly below."""
        checked_folder(prefix)
        self._count("list")
        rests = (info.key.removeprefix(prefix) for info in self._below(prefix))
        return iter(sorted({rest.partition("/")[0] for rest in rests if "/" in rest}))

    def delete(self, key: str) -> None:
        """Remove the object. A missing object is not an error."""
        full = self._full(key)
        self._count("delete")
        with self._contents.lock:
            self._contents.drop(full)

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        """Copy an object, replacing `dst`."""
        target = dst_store or self
        if not isinstance(target, MemoryStore):
            target.put_overwrite(dst, self.get(src))
            return
        source, full = self._full(src), target._full(dst)
        self._count("copy")
        stored = _stored(self._found(source, src).data)
        with target._contents.lock:
            target._contents.put(full, stored)

    @property
    def _contents(self) -> _Contents:
        return _by_name.setdefault(self._name, _Contents())

    def _full(self, key: str) -> str:
        return self._folder + checked_key(key)

    def _found(self, full: str, key: str) -> _Stored:
        try:
            return self._contents.objects[full]
        except KeyError as error:
            raise NotFound("The object does not exist.", store=self.uri, key=key) from error

    def _below(self, prefix: str) -> Sequence[ObjectInfo]:
        start = self._folder + prefix
        with self._contents.lock:
            found = self._contents.below(start)
        return [ObjectInfo(key.removeprefix(self._folder), len(one.data), one.modified) for key, one in found]


def _stored(data: Bytes | Sequence[Bytes]) -> _Stored:
    return _Stored(b"".join(as_buffers(data)), clock.now())
