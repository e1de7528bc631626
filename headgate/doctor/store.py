"""The checks of a table's store. They put a probe object, put it again, read, list and delete it; without permission to
write they only check reading. They write nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from headgate import clock
from headgate.connectors.objects import ObjectStore, open_store, redact
from headgate.connectors.objects.deletion import delete
from headgate.connectors.objects.local import LocalStore
from headgate.doctor.machine import Check, room_of
from headgate.errors import AlreadyExists, HeadgateError, NotFound, PermissionDenied
from headgate.table.table import Table, open_table

T = TypeVar("T")

PROBES = "doctor/"
"""Folder of probe objects, below the table's own records or the given prefix. Nothing else reads it."""

SKEW, MUCH_SKEW = timedelta(seconds=30), timedelta(minutes=10)
"""Clock differences for a warning, and for bad. S3 rejects requests that are 15 minutes off."""


def check_table(uri: str, options: dict[str, str]) -> Iterator[Check]:
    """Check that a table opens, and what its stores allow."""
    try:
        table = open_table(uri, storage_options=options or None)
    except HeadgateError as error:
        do = error.advice or error.next_step
        yield Check("table", "open", "bad", error.what, do)
        return
    yield _streams(table)
    home = table.home
    yield from check_store(home.records, "table's store")
    for store in home.places[1:]:
        yield from check_store(store, "WAL store")


def look_at_table(table: Table) -> Iterator[Check]:
    """Check an open table by reading only; puts no probe."""
    yield _streams(table)
    for number, store in enumerate(table.home.places):
        area = "WAL store" if number else "table's store"
        yield _Probe(store, area, "", b"").step("read and list", partial(_readable, store, area))


def check_prefix(uri: str, options: dict[str, str]) -> Iterator[Check]:
    """Check what a store allows below a prefix without a table."""
    try:
        store = open_store(uri, options or None)
    except HeadgateError as error:
        yield Check("store", "open", "bad", error.what, error.advice or error.next_step)
        return
    yield from check_store(store, "store")


def _streams(table: Table) -> Check:
    from headgate.checkpoints.log.names import list_streams

    try:
        names = list_streams(table.home.records)
    except HeadgateError as error:
        return Check("table", "open", "bad", error.what, error.advice or error.next_step)
    told = f"{redact(table.uri)}, streams: {', '.join(names) or 'none'}"
    return Check("table", "open", "ok", told)


# -- the store -------------------------------------------------------------------------


@dataclass
class _Probe:
    """A probe object."""

    store: ObjectStore
    area: str
    key: str
    data: bytes

    def step(self, name: str, run: Callable[[], Check]) -> Check:
        """The result of a step; an error of the store is bad, with the error's advice."""
        try:
            return run()
        except HeadgateError as error:
            return Check(self.area, name, "bad", error.what, error.advice or error.next_step)

    def ok(self, name: str, what: str) -> Check:
        return Check(self.area, name, "ok", what)

    def bad(self, name: str, what: str, do: str) -> Check:
        return Check(self.area, name, "bad", what, do)

    # -- steps -----------------------------------------------------------------------

    def refused(self) -> Check:
        """A second put of the same name must fail: every fence depends on it."""
        name = "put if absent, twice"
        try:
            self.store.put_if_absent(self.key, self.data + b" again")
        except AlreadyExists:
            return self.ok(name, "the second one was refused")
        return self.bad(
            name,
            "a second put REPLACED the first",
            "do not use this store: it ignores If-None-Match, so that nothing fences; see docs/operations/s3.md",
        )

    def read(self) -> Check:
        found = bytes(self.store.get(self.key))
        if found == self.data:
            return self.ok("read", f"{len(found)} bytes, as they were written")
        return self.bad("read", "other bytes came back", "do not use this store")

    def listed(self) -> Check:
        if any(info.key == self.key for info in self.store.list(PROBES)):
            return self.ok("list", "the new object is listed at once")
        return self.bad("list", "the new object is not listed", "do not use this store: a LIST must see every put")

    def clock(self, before: datetime, after: datetime) -> Check:
        """Compare the store's clock with this machine's. Only ages in messages and S3's signatures depend on it."""
        stored = self.store.head(self.key).modified
        # Stores keep whole seconds.
        apart = max(before - stored - timedelta(seconds=1), stored - after, timedelta(0))
        seen = f"{apart.total_seconds():.1f} s apart from the store's"
        do = "let NTP set this machine's clock; S3 refuses requests that are 15 minutes off"
        return Check(
            self.area, "clock", "bad" if apart > MUCH_SKEW else "warn" if apart > SKEW else "ok", seen, _if(apart, do)
        )

    def deleted(self) -> Check:
        delete(self.store, self.key, "probe")
        with suppress(NotFound):
            self.store.head(self.key)
            return self.bad("delete", "the object is still there", "allow s3:DeleteObject below the table")
        return self.ok("delete", "the probe is gone")


def check_store(store: ObjectStore, area: str) -> Iterator[Check]:
    """Put, put again, read, list, clock, delete. THIS WRITES one small object, and deletes it."""
    probe = _Probe(store, area, f"{PROBES}{uuid.uuid4().hex}", b"headgate doctor")
    before = clock.now()
    try:
        store.put_if_absent(probe.key, probe.data)
    except PermissionDenied as error:
        do = "enough for readers; a writer needs what docs/operations/s3.md lists"
        yield Check(area, "write", "warn", f"not allowed: {error.what}", do)
        yield probe.step("list", lambda: _readable(store, area))
        return
    except HeadgateError as error:
        yield Check(area, "write", "bad", error.what, error.advice or error.next_step)
        return
    after = clock.now()
    yield probe.ok("write", store.uri)
    try:
        yield probe.step("put if absent, twice", probe.refused)
        yield probe.step("read", probe.read)
        yield probe.step("list", probe.listed)
        yield probe.step("clock", lambda: probe.clock(before, after))
    finally:
        last = probe.step("delete", probe.deleted)
    yield last
    if isinstance(store.counting, LocalStore):
        yield room_of(store.counting.uri.removeprefix("file://"), area)


def _readable(store: ObjectStore, area: str) -> Check:
    first = next(iter(store.list("")), None)
    if first is None:
        return Check(area, "list", "ok", "allowed; there is nothing")
    size = len(store.get(first.key))
    return Check(area, "list", "ok", f"allowed, and {size} bytes of one object were read")


def _if(apart: timedelta, do: str) -> str:
    return do if apart > SKEW else ""
