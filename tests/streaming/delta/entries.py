"""The rows of WAL entries, read as the format says: what a ledger's answer is checked against."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.shards.wal.decoder import decode_entry
from headgate.table.table import Table


def entry_ids(table: Table, shard: str, positions: Iterable[int] | None) -> set[int]:
    """The ids that the entries at these positions of a shard hold."""
    place = table.home.shard(shard)
    entries = [decode_entry(place.wal.get(place.wal_key(position))) for position in positions or ()]
    return {one for entry in entries for batch in entry.batches for one in batch.column("id").to_pylist()}
