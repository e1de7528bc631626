"""Which SSTables a version of the base contains, per shard: readers must not read these again (R11).

Two kinds of marks record it: native's, which merge-insert sets (tables with a key), and ours, for appends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from headgate.connectors.lance.base.append import appended_marks
from headgate.connectors.lance.base.manifest import native_marks
from headgate.connectors.objects import ObjectStore


def compacted_marks(store: ObjectStore, dataset: Any, shards: Collection[UUID] | None = None) -> Mapping[UUID, int]:
    """Per shard, of those given, the highest generation that this version of the base contains. Reads two ranges of
    one object.

    `store` has the dataset's directory as its root. Raises NotFound, Corrupt, and Poisoned if it is no longer known
    whether an unfinished append landed.
    """
    marks = dict(native_marks(store, dataset))
    for shard, generation in appended_marks(dataset, shards).items():
        marks[shard] = max(generation, marks.get(shard, 0))
    return marks
