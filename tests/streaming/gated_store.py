"""A store in which SSTables cannot be made while a file is there. Workers import it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from headgate.connectors.objects.local import LocalStore
from headgate.table import Table

PATIENCE = 60.0


class GatedStore(LocalStore):
    """Who asks where a new SSTable lies waits until the gate is gone."""

    def __init__(self, uri: str, gate: Path) -> None:
        super().__init__(uri)
        self._gate = gate

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        """As the store does, once the gate is gone."""
        end = time.monotonic() + PATIENCE
        while "_gen_" in key and self._gate.exists():
            assert time.monotonic() < end, "nobody opened the gate"
            time.sleep(0.02)
        return super().locate(key)


def behind(table: Table, gate: Path) -> Table:
    """The table, reached through such a store."""
    store = GatedStore(table.uri, gate)
    return replace(table, home=replace(table.home, store=store, wal_store=store))
