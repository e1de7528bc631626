"""A store, and a decoder, that fail in the first tries of a task. Workers import it; each try leaves a file behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from headgate.connectors.objects.local import LocalStore
from headgate.connectors.objects.port import Bytes
from headgate.errors import Transient
from headgate.streaming.decode.api import Decoded, Decoder
from headgate.table.table import Table


@dataclass(frozen=True)
class Tries:
    """The tries of tasks, one file each; those before number `until` fail."""

    folder: Path
    until: int

    def fail(self) -> None:
        """Raises Transient in a task that has not been tried often enough."""
        context = TaskContext.get()
        if context is None:
            return
        self.folder.mkdir(exist_ok=True)
        (self.folder / str(context.attemptNumber())).touch()
        if context.attemptNumber() < self.until:
            raise Transient("The store is away.", try_number=context.attemptNumber())

    def seen(self) -> list[int]:
        """The numbers of the tries that came here."""
        return sorted(int(file.name) for file in self.folder.iterdir())


class AwayStore(LocalStore):
    """Stores no WAL entry in a try that is to fail."""

    def __init__(self, uri: str, tries: Tries) -> None:
        super().__init__(uri)
        self._tries = tries

    def put_next(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """As the store does, or Transient."""
        if "/wal/" in key:
            self._tries.fail()
        super().put_next(key, data)


@dataclass(frozen=True)
class AwayDecoder:
    """Decodes as another does, or raises Transient, as reading Kafka does where the broker is away."""

    inner: Decoder
    tries: Tries

    @property
    def schema(self) -> pa.Schema:
        """The other's."""
        return self.inner.schema

    def decode(self, values: pa.Array) -> Decoded:
        """The rows, or Transient."""
        self.tries.fail()
        return self.inner.decode(values)


def behind(table: Table, tries: Tries) -> Table:
    """The table, reached through a store that fails."""
    store = AwayStore(table.uri, tries)
    return replace(table, home=replace(table.home, store=store, wal_store=store))
