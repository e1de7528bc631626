"""Writers of a table that route rows by themselves.

Promises:
1. A row goes to the shard of its key. Rows of one key keep their order.
2. A call is durable when it returns. Over several shards it is not one commit: after an error some of them may have
   their rows. It is safe to repeat the call, since the last row of a key counts.
3. Writers are opened when rows first need them, but none if a stream owns one of the shards (R16), and stay open until
   `close`: each open leaves a barrier forever. After `close` the next call opens them anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headgate.errors import HeadgateError
from headgate.shards.config import WriterConfig
from headgate.shards.placement import routed
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TableHome
from headgate.shards.wal.puts import Put
from headgate.shards.writer import ShardWriter

_CONFIG = WriterConfig(durable_write=False)
"""All shards write at once, and then each one is waited for."""


class RoutedWriters:
    """The writers of one table. Thread-safe. A pickled copy is empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers: dict[str, ShardWriter] = {}
        self._known: RowSchema | None = None
        self._home: TableHome | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RoutedWriters, ()

    def write(
        self,
        home: TableHome,
        current: Callable[[TableHome], TableHome],
        stored: Callable[[RowSchema], Sequence[pa.RecordBatch]],
    ) -> None:
        """Put rows in storage form into their shards. `current` returns the table's current columns when writers are
        opened; a caller with other columns than the previous one gets new writers.

        Raises InvalidInput (nothing was written), Fenced, Poisoned: every later call raises it too, until `close`.
        """
        with self._lock:
            if self._known != home.schema:
                self._close()
            if not self._writers:
                self._known, self._home = home.schema, current(home)
            assert self._home is not None
            parts = routed(self._home, stored(self._home.schema))
            missing = [name for name in parts if name not in self._writers]
            if missing and self._writers:
                current(home)  # the table may have been re-created since the other writers were opened
            self._open(self._home, missing)
            errors: list[HeadgateError] = []
            puts: list[Put] = []
            for name, batches in parts.items():
                _collected(errors, lambda: puts.append(self._writers[name].append(batches)))  # noqa: B023
        for put in puts:
            _collected(errors, put.wait)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Close all writers. Raises the first stored error; acknowledged rows are safe either way."""
        with self._lock:
            self._close()

    def _open(self, home: TableHome, names: Sequence[str]) -> None:
        for name in names:
            home.shard(name).manifests.check_free()
        for name in names:
            self._writers[name] = ShardWriter.open(home, home.shard(name).id, _CONFIG)

    def _close(self) -> None:
        writers, self._writers = self._writers, {}
        errors: list[HeadgateError] = []
        for writer in writers.values():
            _collected(errors, writer.close)
        if errors:
            raise errors[0]


def _collected(errors: list[HeadgateError], call: Callable[[], object]) -> None:
    try:
        call()
    except HeadgateError as error:
        errors.append(error)
