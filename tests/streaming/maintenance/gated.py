"""A store in which tasks of maintenance stand still while a file is there, one per kind of job. Workers import it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from headgate.connectors.objects.local import LocalStore
from headgate.table.table import Table

PATIENCE = 120.0
KINDS = ("flush", "compaction", "index of")
"""As the jobs' names in Spark tell them."""

READ_BY_DRIVER: list[str] = []
"""Entries and SSTables that this process has read, if it is no worker."""


class GatedStore(LocalStore):
    """A task of a job that is gated waits, where it asks where something lies, until the gate is gone."""

    def __init__(self, uri: str, gates: Path) -> None:
        super().__init__(uri)
        self._gates = gates

    def get(self, key: str) -> memoryview:
        """As the store does; what a driver reads of the WALs is noted."""
        if "/wal/" in key and not _job():
            READ_BY_DRIVER.append(key)
        return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """As the store does; what a driver reads of the WALs is noted."""
        if "/wal/" in key and not _job():
            READ_BY_DRIVER.append(key)
        return super().get_range(key, start, length)

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        """As the store does, once the gate is gone; which SSTables a driver asks for is noted."""
        if "_gen_" in key and not _job():
            READ_BY_DRIVER.append(key)
        for kind in KINDS:
            gate = self._gates / kind
            if gate.exists() and kind in _job():
                (self._gates / f"{kind}, reached").touch()
                end = time.monotonic() + PATIENCE
                while gate.exists():
                    assert time.monotonic() < end, "nobody opened the gate"
                    time.sleep(0.02)
        return super().locate(key)


def _job() -> str:
    """The name of the job whose task this is; none in a driver."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty("spark.job.description") or "") if context else ""


def behind(table: Table, gates: Path) -> Table:
    """The table, reached through such a store, with a gate for each kind of job."""
    gates.mkdir()
    for kind in KINDS:
        (gates / kind).touch()
    store = GatedStore(table.uri, gates)
    return replace(table, home=replace(table.home, store=store, wal_store=store))
