"""What of the product is replaced in a simulation: threads, locks, chance, and Lance.

Threads of `headgate.parallel` are the scheduler's. The calls of one pool run one after the other, in the thread that
asks for them, so that other parties' steps come between any two. Lance takes milliseconds a call: SSTables and the base
are those of the room `lance`.
"""

from __future__ import annotations

import random
import secrets
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

from headgate import parallel
from headgate.checkpoints.jobs import durable
from headgate.checkpoints.log import codec as log_codec
from headgate.connectors.lance.base import damage, manifest, synced
from headgate.connectors.objects import ObjectStore, port
from headgate.errors import Transient
from headgate.shards import names
from headgate.shards.manifest import model as manifest_model
from headgate.shards.wal import tip
from tests.simulation.lance.dataset import Dataset, place
from tests.simulation.lance.module import modules
from tests.simulation.scheduler import Locks, current
from tests.simulation.store import base_version

LOCKED = (
    "headgate.checkpoints.log.fold",
    "headgate.checkpoints.stream.shards",
    "headgate.shards.memtable.memtables",
    "headgate.shards.wal.appender",
    "headgate.shards.wal.flusher",
)
"""Modules whose locks are held, or waited for, while the store is asked."""


class Chance:
    """Ids and pauses of one schedule, from its seed."""

    def __init__(self) -> None:
        self.drawn = random.Random()

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self.drawn.getrandbits(128), version=4)

    def token_hex(self, nbytes: int = 32) -> str:
        return self.drawn.randbytes(nbytes).hex()

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.drawn.random()


CHANCE = Chance()


@contextmanager
def simulated() -> Iterator[None]:
    """Every thread of the product that starts inside a simulated one is the scheduler's."""
    with ExitStack() as stack:
        for name in LOCKED:
            stack.enter_context(patch.object(import_module(name), "threading", Locks()))
        stack.enter_context(patch.dict(sys.modules, modules()))
        for owner, name, value in (*_REPLACED, *_everywhere()):
            stack.enter_context(patch.object(owner, name, value))
        yield


def _everywhere() -> Iterator[tuple[Any, str, Any]]:
    """What modules have imported by its name; and pure functions, which remember what they answered."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("headgate.")]
    instead = {_real_pool: SimPool, **_LANCE, **{one: lru_cache(50_000)(one) for one in _PURE}}
    for module in modules:
        for name, value in vars(module).items():
            if callable(value) and getattr(value, "__hash__", None) is not None and value in instead:
                yield module, name, instead[value]


# -- threads -----------------------------------------------------------------------------


class Done:
    """A future whose call has ended."""

    __slots__ = ("_error", "_result")

    def __init__(self, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._error: Exception | None = None
        try:
            self._result = call(*args, **kwargs)
        except Exception as error:
            self._error = error

    def result(self, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> Exception | None:
        return self._error

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return False


class SimPool:
    """`parallel.Pool` inside of a simulation; the real one elsewhere."""

    def __new__(cls, name: str, workers: int = parallel.WORKERS) -> Any:
        return _real_pool(name, workers) if current() is None else super().__new__(cls)

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Done:
        return Done(call, args, kwargs)

    def map(self, call: Callable[..., Any], *items: Any, **_: Any) -> Iterator[Any]:
        calls = [Done(call, one, {}) for one in zip(*items, strict=False)]
        return (one.result() for one in calls)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass

    def __enter__(self) -> SimPool:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _thread(name: str, call: Callable[..., object], *args: Any) -> Any:
    me = current()
    if me is None:
        return _real_thread(name, call, *args)
    return me.scheduler.thread(f"{me.name}.{name}", me.process, lambda: call(*args))


_real_pool, _real_thread = parallel.Pool, parallel.thread


# -- Lance -----------------------------------------------------------------------------------


def _native_marks(store: ObjectStore, found: Dataset) -> dict[uuid.UUID, int]:
    return {uuid.UUID(shard): mark for shard, mark in found.marks.items()}


def _sync_base(store: ObjectStore, version: int | None = None) -> None:
    """All of the base, as it is now, or up to a version."""
    simulated, _ = place(store.locate()[0])
    objects = simulated.objects
    if not objects.on_disk:
        return
    try:
        simulated.lance_read("sync base")
    except OSError as error:
        raise Transient("The base could not be synced.") from error
    newest = max(map(base_version, objects.below("_versions/")), default=0)
    objects.synced = max(objects.synced, newest if version is None else version)


_LANCE: dict[Any, Any] = {
    manifest.native_marks: _native_marks,
    manifest.max_fragment_id: lambda found: found.highest,
    synced.sync_base: _sync_base,
    damage.settle_base: _sync_base,
    durable.require_on_disk: lambda home, shard_ids: _sync_base(home.store),
}
"""What headgate reads off the bytes of Lance's own files, and syncs of them."""

_PURE: tuple[Any, ...] = (
    manifest_model.decode_manifest,
    log_codec.decode_record,
    log_codec.decode_fold,
    names.shard_folder,
    names.wal_folder,
    names.manifest_folder,
    names.wal_key,
    names.manifest_key,
    names.wal_position,
    names.manifest_version,
    names.parse_uuid,
    port.checked_key,
    port.checked_folder,
)

_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    # A window that WALs of a few entries fill, so that its edges are met.
    (tip, "WINDOW", 3),
    (parallel, "thread", _thread),
    (uuid, "uuid4", CHANCE.uuid4),
    (secrets, "token_hex", CHANCE.token_hex),
    (random, "uniform", CHANCE.uniform),
)
