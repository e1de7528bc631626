"""An object store that fails on purpose, wrapped around a real one.

One FaultyStore is one process' way to the store: faults, stalls and death belong to it alone,
while the objects behind it are shared. Everything happens at an operation's number, verb and key,
so that a failing run can be repeated.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headgate.connectors.objects.port import Bytes, ObjectInfo, ObjectStore, as_buffers
from headgate.errors import AlreadyExists, NotFound, Transient

T = TypeVar("T")

PATIENCE = 300.0
"""Seconds until a stall that nobody ends fails the test instead of hanging it."""


class Crash(BaseException):
    """The process died. No `except Exception` survives it, as none survives kill -9."""


class Fault(enum.Enum):
    """What may happen to one operation."""

    FAIL = "503, 409 or no connection: nothing is done"
    LOST = "it is done, and the response is lost"
    LOST_EXISTS = "it is done, the response is lost, and the client's own second try is refused"
    LATE = "a timeout, while the request is still on its way: it is done at `deliver`"
    VANISHED = "a conflict is told, and there is nothing"


@dataclass(frozen=True)
class Operation:
    """The n-th operation of a store, counted from 1."""

    number: int
    verb: str
    key: str


Plan = Callable[[Operation], Fault | None]


@dataclass
class Stall:
    """Stops the first operation that matches, before it is done or when it is done."""

    matches: Callable[[Operation], bool]
    done: bool
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        """Until an operation stands here."""
        assert self.reached.wait(PATIENCE), "no operation came to the stall"

    def release(self) -> None:
        """Let it go on."""
        self.released.set()


class FaultyStore(ObjectStore):
    """Faults by plan, by script, by death, by stall; counts and logs every operation."""

    def __init__(self, inner: ObjectStore, plan: Plan | None = None, *, crash_after: int | None = None) -> None:
        super().__init__(inner.uri)
        self.inner = inner
        self.plan = plan
        self.crash_after = crash_after
        """This many operations are done; the response of the last one, and all later ones, end in Crash."""
        self.log: list[Operation] = []
        self.late: list[tuple[str, bytes]] = []
        self.injected = 0
        self.crashed = False
        self._scripts: dict[str, deque[Fault | None]] = {}
        self._stalls: list[Stall] = []
        self._lock = threading.Lock()

    # -- asking for trouble ----------------------------------------------------

    def script(self, verb: str, *faults: Fault | None) -> None:
        """What happens to the next operations of that verb, one after the other."""
        self._scripts.setdefault(verb, deque()).extend(faults)

    def unscript(self) -> None:
        """No more faults."""
        self._scripts.clear()
        self.plan = None

    def stall(self, verb: str, key: str = "", *, done: bool = False) -> Stall:
        """Stop the next operation of that verb whose key contains `key`."""
        stall = Stall(lambda operation: operation.verb == verb and key in operation.key, done)
        self._stalls.append(stall)
        return stall

    def die(self) -> None:
        """Every later operation ends in Crash."""
        self.crashed = True
        self.crash_after = 0

    def deliver(self) -> None:
        """What was late arrives."""
        late, self.late = self.late, []
        for key, data in late:
            with contextlib.suppress(AlreadyExists):
                self.inner.put_if_absent(key, data)

    def verbs(self) -> list[str]:
        """The verbs so far, in order."""
        return [operation.verb for operation in self.log]

    # -- verbs -------------------------------------------------------------------

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._count("put")
        self._run("put_if_absent", key, lambda: self.inner.put_if_absent(key, data), data)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._count("put")
        self._run("put_overwrite", key, lambda: self.inner.put_overwrite(key, data))

    def get(self, key: str) -> memoryview:
        self._count("get")
        return self._run("get", key, lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self._count("get")
        return self._run("get_range", key, lambda: self.inner.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo:
        self._count("head")
        return self._run("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._count("list")
        return self._run("list", prefix, lambda: iter(tuple(self.inner.list(prefix))))

    def list_folders(self, prefix: str) -> Iterator[str]:
        self._count("list")
        return self._run("list_folders", prefix, lambda: iter(tuple(self.inner.list_folders(prefix))))

    def delete(self, key: str) -> None:
        self._count("delete")
        self._run("delete", key, lambda: self.inner.delete(key))

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        self._count("copy")
        self._run("copy", src, lambda: self.inner.copy(src, dst, dst_store))

    def _run(self, verb: str, key: str, action: Callable[[], T], data: Bytes | Sequence[Bytes] | None = None) -> T:
        operation, fault, before, after = self._begin(verb, key)
        if before is not None:
            _stand(before)
        if fault is Fault.FAIL:
            raise Transient("A fault: nothing was done.", operation=operation.number, verb=verb, key=key)
        if fault is Fault.LATE:
            assert data is not None, "only a put can be late"
            self.late.append((key, b"".join(as_buffers(data))))
            raise Transient("A fault: a timeout.", operation=operation.number, verb=verb, key=key)
        if fault is Fault.VANISHED:
            raise (AlreadyExists if data is not None else NotFound)("A fault: told, yet nothing is there.", key=key)
        try:
            result = action()
        except BaseException:
            if after is not None:
                self._stalls.append(after)  # it waits for one that is done
            raise
        if after is not None:
            _stand(after)
        if self.crash_after is not None and operation.number >= self.crash_after:
            self.crashed = True
            raise Crash(f"after operation {operation}")
        if fault is Fault.LOST:
            raise Transient("A fault: the response was lost.", operation=operation.number, verb=verb, key=key)
        if fault is Fault.LOST_EXISTS:
            raise AlreadyExists("A fault: the second try met the first.", operation=operation.number, key=key)
        return result

    def _begin(self, verb: str, key: str) -> tuple[Operation, Fault | None, Stall | None, Stall | None]:
        with self._lock:
            if self.crash_after is not None and len(self.log) >= self.crash_after:
                self.crashed = True
                raise Crash(f"the process has been dead since operation {self.crash_after}")
            operation = Operation(len(self.log) + 1, verb, key)
            self.log.append(operation)
            script = self._scripts.get(verb)
            fault = script.popleft() if script else self.plan(operation) if self.plan else None
            self.injected += fault is not None
            hit = next((stall for stall in self._stalls if stall.matches(operation)), None)
            if hit is None:
                return operation, fault, None, None
            self._stalls.remove(hit)
            return (operation, fault, None, hit) if hit.done else (operation, fault, hit, None)


class OverwritingStore(FaultyStore):
    """Broken: put_if_absent silently replaces what is there. Tests of the promise must fail over it."""

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._count("put")
        self._run("put_if_absent", key, lambda: self.inner.put_overwrite(key, data), data)


def _stand(stall: Stall) -> None:
    stall.reached.set()
    assert stall.released.wait(PATIENCE), "nobody released the stall"
