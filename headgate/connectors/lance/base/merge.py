"""Merging rows of SSTables into a base with a key, in one commit with native's mark of what was taken in.

Promises:
1. Rows and mark land together or not at all, and a mark only rises: whoever comes second is refused by Lance.
2. A delete removes rows that the version it was built on has, and no others: a caller who checked after reading that
   version that it still holds the shards takes nothing from a successor.
3. Memory holds the given rows, and of the base what Lance reads ahead of its key columns: these are joined against
   the rows, a few bytes each.

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
    """What a merge did, in rows."""

    inserted: int
    updated: int


def delete_keys(dataset: Any, key: Sequence[str], keys: pa.Table) -> int:
    """Delete the rows with these keys. How many. Moves `dataset` on to the version this makes.

    Raises Transient if another change of the base came in between, or the store failed: open it again.
    """
    if not keys.num_rows:
        return 0
    try:
        # No retry inside: Lance would look for the keys again, in a base that may be a successor's.
        merge = dataset.merge_insert(list(key)).when_matched_delete().conflict_retries(0)
        return int(merge.execute(keys.select(list(key)))["num_deleted_rows"])
    except (OSError, ValueError, RuntimeError) as error:
        raise _failed(dataset, "Deleting rows from the base failed.", error) from without_secrets(error)


def merge_rows(dataset: Any, key: Sequence[str], rows: pa.Table, generations: Mapping[UUID, int]) -> Merged:
    """Replace the rows with these keys, add the new ones, and mark the generations as taken in; without rows, mark.

    Moves `dataset` on to the version this makes. Raises Transient if another change of the base came in between, a
    generation is marked already, or the store failed: the base tells which.
    """
    from lance import CompactedSsTable

    marks = [CompactedSsTable(str(shard), generation) for shard, generation in sorted(generations.items())]
    try:
        # A table and not a reader: Lance then collects this side of the join and streams the base's.
        merge = dataset.merge_insert(list(key)).when_matched_update_all().when_not_matched_insert_all()
        done = merge.conflict_retries(0).mark_sstables_as_compacted(marks).execute(aligned(rows))
        return Merged(int(done["num_inserted_rows"]), int(done["num_updated_rows"]))
    except (OSError, ValueError, RuntimeError) as error:
        raise _failed(dataset, "Merging rows into the base failed.", error) from without_secrets(error)


def _failed(dataset: Any, what: str, error: Exception) -> HeadgateError:
    return native_error(what, error, Transient, uri=dataset.uri, base_version=dataset.version)
