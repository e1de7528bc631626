"""A store in memory that pauses before each operation, and fails on purpose.

What goes wrong is drawn by the scheduler, at one operation of one thread:
fail: nothing is done, and it raises. lost: it is done, and the answer does not come. exists: it is done, and the
client's own second try is refused. late: it raises, and is done some time later, perhaps never.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache

from headgate.connectors.objects.port import Bytes, ObjectInfo, ObjectStore, as_buffers, checked_range
from headgate.errors import AlreadyExists, NotFound, Transient
from headgate.shards import names
from tests.simulation.scheduler import EPOCH, Crash, Event, Scheduler, Violation, current

READ_FAULTS = ("fail",)
PUT_FAULTS = ("fail", "lost", "exists", "late")
WRITE_FAULTS = ("fail", "lost", "late")


def base_key(version: int) -> str:
    """The name of a version of the base."""
    return f"_versions/{2**64 - 1 - version:020d}.manifest"


def base_version(key: str) -> int:
    """Which version has this name."""
    return 2**64 - 1 - int(key.removeprefix("_versions/").removesuffix(".manifest"))


class Objects:
    """What the store holds: bytes by key, and when it took them by its own clock. Shared by all processes."""

    def __init__(self, scheduler: Scheduler, seed: int, *, watched: bool = True) -> None:
        """`watched`: it is this one whose clock steps, and where late requests arrive and cuts are felt."""
        self.stored: dict[str, tuple[bytes, datetime]] = {}
        self._keys: list[str] = []
        """In order."""
        self.late: list[tuple[str, bytes | None, bool]] = []
        """Requests under way: key, bytes (None: a delete), and whether only if absent."""
        self.unsynced: list[tuple[str, tuple[bytes, datetime]]] = []
        """What was deleted or replaced and not synced: a power cut may bring it back."""
        self.synced = 0
        """The version of the base up to which everything is on disk."""
        self.on_disk = random.Random(f"disk {seed}").random() < 0.5
        """Whether it is a local disk: what Lance writes is there after a power cut only if it was synced."""
        self.on_change: Callable[[str], object] = lambda key: None
        self.skew = 0.0
        self._scheduler = scheduler
        self._chance = random.Random(f"objects {seed}")
        if watched:
            scheduler.on_cut = self._cut
            scheduler.on_deliver = self.deliver
            scheduler.on_step_clock = self._step_clock

    def now(self) -> datetime:
        """The store's time."""
        return datetime.fromtimestamp(EPOCH + self._scheduler.now + self.skew, UTC)

    def put(self, key: str, data: bytes, *, absent: bool) -> None:
        """Raises AlreadyExists."""
        before = self.stored.get(key)
        if before is not None:
            if absent:
                raise AlreadyExists("An object of that name exists.", key=key)
            self.unsynced.append((key, before))
        self._set(key, (data, self.now()))
        self._changed(key)

    def delete(self, key: str) -> None:
        if (before := self.stored.pop(key, None)) is not None:
            del self._keys[bisect_left(self._keys, key)]
            self.unsynced.append((key, before))
            self._changed(key)

    def discard(self, *keys: str) -> None:
        """Delete them, for good, and tell nobody."""
        for key in keys:
            del self._keys[bisect_left(self._keys, key)]
            del self.stored[key]

    def clear(self) -> None:
        """Nothing is there any more, and nothing under way."""
        self.discard(*list(self.stored))
        self.late.clear()
        self.unsynced.clear()
        self.synced = 0

    def below(self, prefix: str) -> list[str]:
        """The keys that start so."""
        first = bisect_left(self._keys, prefix)
        return self._keys[first : bisect_left(self._keys, f"{prefix}\U0010ffff", first)]

    def _set(self, key: str, what: tuple[bytes, datetime]) -> None:
        if key not in self.stored:
            insort(self._keys, key)
        self.stored[key] = what

    def deliver(self) -> None:
        """What was late arrives: some of it, in any order."""
        if self.late:
            key, data, absent = self.late.pop(self._chance.randrange(len(self.late)))
            what = "delete" if data is None else "put"
            self._scheduler.history.append(Event("store", f"* a late {what} arrives: {short(key)}"))
            if data is None:
                self.delete(key)
            else:
                with suppress(AlreadyExists):
                    self.put(key, data, absent=absent)

    def _cut(self) -> None:
        """Of what was deleted some is there again; of what is under way some never arrives."""
        for key, before in reversed(self.unsynced):
            if key not in self.stored and self._chance.random() < 0.5:
                self._set(key, before)
                self._changed(key)
        self.unsynced.clear()
        if self.on_disk:
            newest = max((number for key in self.below("_versions/") if (number := base_version(key))), default=0)
            for version in range(newest, self._chance.randint(self.synced, max(self.synced, newest)), -1):
                self.delete(base_key(version))
            self.unsynced.clear()
        self.late = [one for one in self.late if self._chance.random() < 0.5]

    def _step_clock(self, seconds: float) -> None:
        self.skew += seconds

    def _changed(self, key: str) -> None:
        try:
            self.on_change(key)
        except Violation as violation:
            self._scheduler.fail(violation)
            # The product may catch whatever it likes, but not this: everything ends.
            if current() is not None:
                raise Crash from violation


class SimStore(ObjectStore):
    """Every process' way to the objects."""

    def __init__(self, objects: Objects, scheduler: Scheduler, uri: str = "memory://tables/source") -> None:
        super().__init__(uri)
        self.objects = objects
        self._scheduler = scheduler

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        return (f"{self.uri}/{key}" if key else self.uri), {}

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._write("put", key, b"".join(as_buffers(data)), PUT_FAULTS, absent=True)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._write("overwrite", key, b"".join(as_buffers(data)), WRITE_FAULTS, absent=False)

    def delete(self, key: str) -> None:
        self._write("delete", key, None, WRITE_FAULTS, absent=False)

    def get(self, key: str) -> memoryview:
        self._read("get", key)
        return memoryview(self._found(key)[0])

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        checked_range(start, length)
        return self.get(key)[start : start + length]

    def head(self, key: str) -> ObjectInfo:
        self._read("head", key)
        data, modified = self._found(key)
        return ObjectInfo(key, len(data), modified)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._read("list", prefix)
        stored = self.objects.stored
        return iter([ObjectInfo(key, len(stored[key][0]), stored[key][1]) for key in self.objects.below(prefix)])

    def list_keys(self, prefix: str) -> Iterator[str]:
        self._read("list", prefix)
        return iter(self.objects.below(prefix))

    def list_folders(self, prefix: str) -> Iterator[str]:
        self._read("list", prefix)
        rests = [key.removeprefix(prefix).partition("/") for key in self.objects.below(prefix)]
        return iter(sorted({folder for folder, below, _ in rests if below}))

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        (dst_store or self).put_overwrite(dst, self.get(src))

    def _found(self, key: str) -> tuple[bytes, datetime]:
        try:
            return self.objects.stored[key]
        except KeyError as error:
            raise NotFound("There is no such object.", store=self.uri, key=key) from error

    def _read(self, verb: str, key: str) -> None:
        if current() is not None and self._scheduler.pause(f"{verb} {short(key)}", READ_FAULTS) is not None:
            raise Transient("The store does not answer.", key=key)

    # -- what the stand-in of Lance does ---------------------------------------------------

    def lance_read(self, what: str) -> None:
        """A step that reads. Raises OSError."""
        if current() is not None and self._scheduler.pause(what, READ_FAULTS) is not None:
            raise OSError("LanceError(IO): HTTP error: the store does not answer")

    @contextmanager
    def lance(self, what: str, faults: tuple[str, ...]) -> Iterator[Callable[[str, bytes | None], None]]:
        """A step that writes: what is put inside of it, or deleted (None), at once. Raises OSError."""
        fault = None if current() is None else self._scheduler.pause(what, faults)

        def put(key: str, data: bytes | None) -> None:
            try:
                self._apply(None if fault is None else fault.what, key, data, absent=True)
            except Transient as error:
                raise OSError(f"LanceError(IO): HTTP error: {error.what}") from error

        yield put

    def _write(self, verb: str, key: str, data: bytes | None, faults: tuple[str, ...], *, absent: bool) -> None:
        fault = None if current() is None else self._scheduler.pause(f"{verb} {short(key)}", faults)
        self._apply(None if fault is None else fault.what, key, data, absent=absent)

    def _apply(self, what: str | None, key: str, data: bytes | None, *, absent: bool) -> None:
        if what == "fail":
            raise Transient("The store does not answer.", key=key)
        if what == "late":
            self.objects.late.append((key, data, absent))
            raise Transient("The store did not answer in time.", key=key)
        if data is None:
            self.objects.delete(key)
        else:
            self.objects.put(key, data, absent=absent)
        if what == "lost":
            raise Transient("The store's answer was lost.", key=key)
        if what == "exists":
            raise AlreadyExists("An object of that name exists.", key=key)


@lru_cache(10_000)
def short(key: str) -> str:
    """A key as people read it in a history."""
    folder, _, name = key.rpartition("/")
    if (position := names.wal_position(key)) is not None:
        return f"entry {position}"
    if (version := names.manifest_version(key)) is not None:
        return f"manifest {version}"
    if folder == "_versions" and name:
        return f"base {base_version(key)}"
    if folder.endswith(("/log", "/folds")):
        return f"{folder.rpartition('/')[2].rstrip('s')} {int(name.removesuffix('.json'))}" if name else folder[-5:]
    parts = [part for part in key.split("/") if part and "-" not in part and not part.startswith("_headgate")]
    return "/".join(parts[-2:]) or "all"
