"""Merges rows of SSTables into a base with a key, in one commit with native's mark of the merged generations.

Promises:
1. Rows and mark land together or not at all, and a mark only rises: Lance rejects a second merge of a generation.
2. A delete removes only rows of the version it was built on. So a caller that checks, after reading that version, that
   it still holds the shards deletes nothing that a successor wrote.
3. Memory holds the given rows and what Lance reads ahead of the base's key columns, which it joins against the rows, a
   few bytes each.

pylance is imported when a function is called, never before (fork safety).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa

from headgate.connectors.lance.alignment import aligned
from headgate.connectors.lance.errors import native_error
from headgate.connectors.objects import without_secrets
from headgate.errors import HeadgateError, Transient


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows that a merge inserted and updated."""

    inserted: int
    updated: int


def delete_keys(dataset: Any, key: Sequence[str], keys: pa.Table) -> int:
    """Delete the rows with these keys. Returns how many. `dataset` then is the version that this commits.

    Raises Transient if another process changed the base meanwhile, or the store failed: open the base again.
    """
    if not keys.num_rows:
        return 0
    try:
        # No retry by Lance: it would look for the keys again, in a base that a successor may have changed.
        merge = dataset.merge_insert(list(key)).when_matched_delete().conflict_retries(0)
        return int(merge.execute(keys.select(list(key)))["num_deleted_rows"])
    except (OSError, ValueError, RuntimeError) as error:
        raise _failed(dataset, "Deleting rows from the base failed.", error) from without_secrets(error)


def merge_rows(dataset: Any, key: Sequence[str], rows: pa.Table, generations: Mapping[UUID, int]) -> Merged:
    """Update rows with known keys, insert the others, and mark the generations as merged; without rows only mark.

    `dataset` then is the version that this commits. Raises Transient if another process changed the base meanwhile, a
    generation is marked already, or the store failed: the base shows which.
    """
    from lance import CompactedSsTable

    marks = [CompactedSsTable(str(shard), generation) for shard, generation in sorted(generations.items())]
    try:
        # With a table instead of a reader, Lance collects this side of the join and streams the base's.
        merge = dataset.merge_insert(list(key)).when_matched_update_all().when_not_matched_insert_all()
        done = merge.conflict_retries(0).mark_sstables_as_compacted(marks).execute(aligned(rows))
        return Merged(int(done["num_inserted_rows"]), int(done["num_updated_rows"]))
    except (OSError, ValueError, RuntimeError) as error:
        raise _failed(dataset, "Merging rows into the base failed.", error) from without_secrets(error)


def _failed(dataset: Any, what: str, error: Exception) -> HeadgateError:
    return native_error(what, error, Transient, uri=dataset.uri, base_version=dataset.version)
