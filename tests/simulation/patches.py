"""What of the product is replaced in a simulation: threads, locks, chance, and Lance.

Threads of `headgate.parallel` are the scheduler's. The calls of one pool run one after the other, in the thread that
asks for them, so that other parties' steps come between any two. SSTables and the base need Lance, which takes
milliseconds a call: an SSTable is its rows in JSON, and the base is empty (nothing is compacted).
"""

from __future__ import annotations

import json
import random
import secrets
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from headgate import parallel
from headgate.checkpoints.gc import collect as gc_collect
from headgate.checkpoints.gc import shards as gc_shards
from headgate.checkpoints.jobs import flush as flush_job
from headgate.checkpoints.log import codec as log_codec
from headgate.checkpoints.snapshots import take
from headgate.checkpoints.snapshots.cache import TableCache
from headgate.connectors.objects import ObjectStore, port
from headgate.connectors.objects.deletion import delete
from headgate.errors import NotFound
from headgate.shards import names, writer
from headgate.shards.manifest import model as manifest_model
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.shards.memtable.memtable import MemTable
from headgate.shards.rows.base import CompactedMarks
from headgate.shards.shard import Claim, Shard, TableHome
from headgate.shards.wal import tip
from tests.simulation.scheduler import Locks, current

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
            stack.enter_context(patch.object(sys.modules[name], "threading", Locks()))
        for owner, name, value in (*_REPLACED, *_everywhere()):
            stack.enter_context(patch.object(owner, name, value))
        yield


def _everywhere() -> Iterator[tuple[Any, str, Any]]:
    """What modules have imported by its name; and pure functions, which remember what they answered."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("headgate.")]
    instead = {_real_pool: SimPool, **{one: lru_cache(50_000)(one) for one in _PURE}}
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


# -- SSTables and the base -----------------------------------------------------------------


def rows_key(shard_id: uuid.UUID, path: str) -> str:
    """Where the rows of an SSTable are."""
    return f"{names.shard_folder(shard_id)}/{path}/rows.json"


def _write_sstable(claim: Claim, maintained: object, table: MemTable) -> SsTable:
    sstable = SsTable(table.generation, names.new_sstable(table.generation, claim.epoch))
    rows = table.newest().column("id").to_pylist()
    # Lance gives a failed put up: the whole SSTable is written again, under another name.
    key = rows_key(claim.shard.id, sstable.path)
    claim.shard.home.store.put_overwrite(key, json.dumps(rows).encode())
    return sstable


def _missing(shard: Shard, latest: Manifest, base: object) -> str | None:
    for sstable in latest.sstables:
        try:
            shard.home.store.head(rows_key(shard.id, sstable.path))
        except NotFound:
            return f"SSTable {sstable.path} is missing"
    return None


class EmptyBase:
    """The base of a table whose rows are all in SSTables and WALs."""

    def __init__(self, home: TableHome) -> None:
        self.home = home
        self.fault = None
        self.marks: dict[uuid.UUID, int] = {}
        self.rows = SimpleNamespace(dataset=SimpleNamespace(version=1))

    def compacted(self, shards: frozenset[uuid.UUID]) -> CompactedMarks:
        return CompactedMarks(shards, {}, {})


def _tag_key(tag: str) -> str:
    return f"_refs/tags/{tag}.json"


def _hold_version(store: ObjectStore, tag: str, version: int) -> None:
    store.put_overwrite(_tag_key(tag), b"%d" % version)


def _release_version(store: ObjectStore, tag: str) -> None:
    delete(store, _tag_key(tag), "tag")


def _held_versions(store: ObjectStore) -> dict[str, int]:
    return {info.key.removeprefix("_refs/tags/").removesuffix(".json"): 1 for info in store.list("_refs/tags/")}


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
    (flush_job, "current_home", lambda home: home),
    (flush_job, "write_sstable", _write_sstable),
    (writer, "write_sstable", _write_sstable),
    (gc_collect, "Base", EmptyBase),
    (gc_shards, "_missing", _missing),
    (TableCache, "base", lambda self, home: EmptyBase(home)),
    (take, "hold_version", _hold_version),
    (take, "release_version", _release_version),
    (take, "held_versions", _held_versions),
)
