"""Information about a table in its base."""

from __future__ import annotations

import uuid

from headgate.connectors.lance.dataset import Base
from headgate.connectors.objects import ObjectStore
from headgate.errors import Corrupt, InvalidInput
from headgate.shards.home.record import TableRecord
from headgate.shards.shard import TABLE_ID


def index_name(column: str) -> str:
    """The name of a column's index on the base, and of a full-text index on every SSTable as well."""
    return f"{column}_idx"


def table_id_of(store: ObjectStore, base: Base) -> uuid.UUID:
    """The id of a table. Raises InvalidInput if there is no table."""
    named = base.config.get(TABLE_ID)
    if named is None:
        what = f"The Lance dataset at {store.uri} is not a headgate table, or its creation was not completed."
        raise InvalidInput(
            what, advice="create the table first; the same create_table call completes an interrupted creation"
        )
    if not named or base.mem_wal is None:
        raise InvalidInput(
            f"The table at {store.uri} was overwritten by native Lance, which dropped its MemWAL.",
            advice="call create_table again: the base's rows stay, and a new table id separates it from the old shards",
        )
    try:
        return uuid.UUID(named)
    except ValueError:
        raise Corrupt(f"The base of {store.uri} names {named[:80]!r}, which is not a table id.") from None


def check_own_mem_wal(store: ObjectStore, base: Base, record: TableRecord) -> None:
    """Raises InvalidInput if someone overwrote the base and initialised MemWAL anew: old shards would come back.

    Ours always names the indexes it maintains; native's default is all of them. (Columns
    are not compared: they may have been renamed.)
    """
    if base.mem_wal is None or base.mem_wal.maintained != tuple(map(index_name, record.full_text)):
        raise InvalidInput(
            f"MemWAL of the table at {store.uri} was re-initialised by native Lance: {base.mem_wal}.",
            advice="drop the index __lance_mem_wal with native Lance, then call create_table again",
        )
