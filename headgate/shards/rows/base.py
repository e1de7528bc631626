"""The base at one version, and which SSTables of the shards it has compacted. Both are immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headgate.connectors.lance.base.marks import compacted_marks
from headgate.connectors.lance.base.notes import started_marks
from headgate.errors import InvalidInput
from headgate.shards.rows.sstable import StoredRows, open_base
from headgate.shards.shard import TABLE_ID, TableHome


@dataclass(frozen=True)
class CompactedMarks:
    """Per shard the generation up to which the base has everything, and up to which it may have the deletes."""

    shards: frozenset[UUID]
    """Shards for which this is known."""
    marks: Mapping[UUID, int]
    started: Mapping[UUID, int]


class Base:
    """One version of a table's base. Thread-safe."""

    def __init__(self, home: TableHome, rows: StoredRows) -> None:
        self.home = home
        self.rows = rows
        self._compacted: CompactedMarks | None = None

    @classmethod
    def at(cls, home: TableHome, version: int | None = None) -> Base:
        """The base as it is now, or at a version. Raises DataLoss, Transient."""
        return cls(home, open_base(home, version))

    def compacted(self, shards: frozenset[UUID]) -> CompactedMarks:
        """Compacted marks of these shards; read once. Raises NotFound, Corrupt, Poisoned as `compacted_marks` does."""
        compacted = self._compacted
        if compacted is None or compacted.shards != shards:
            dataset = self.rows.dataset
            marks = compacted_marks(self.home.store, dataset, shards)
            compacted = self._compacted = CompactedMarks(shards, marks, started_marks(dataset))
        return compacted


def check_own(home: TableHome, dataset: Any) -> None:
    """Raises InvalidInput if the opened base is no longer this table's: it was overwritten, or another table was made
    there, and the same field ids may mean other columns.
    """
    named = dataset.config().get(TABLE_ID)
    if home.table_id is not None and (named != str(home.table_id) or dataset.mem_wal_index_details() is None):
        raise InvalidInput(
            "The base was overwritten by native Lance or by another table.",
            table=home.uri,
            version=dataset.version,
            advice="to keep the shards' rows, restore the earlier version of the base; to drop them, stop all writers "
            "and call create_table again; to read a table that was created here since, open it again. Nothing "
            "was written",
        )
