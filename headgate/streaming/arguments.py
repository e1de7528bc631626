"""The options of a ShardSink as typed arguments, for editors. `options.SinkOptions` documents them; a test keeps both
equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, TypedDict

from headgate.shards.home.stores import Place
from headgate.shards.wal.entry import Compression


class SinkArguments(TypedDict, total=False):
    """Arguments of `ShardSink` besides the table, its decoder and its source."""

    stream: str | None
    enable_memtable: bool
    on_bad_record: Literal["dead_letter", "fail"]
    sequence_by: str | None
    delete_when: str | None
    compression: Compression | None
    max_memtable_size: int
    max_memtable_age: float | str | timedelta
    max_unflushed_memtable_bytes: int
    compact_sstables: int
    max_sstables: int
    max_base_age: float | str | timedelta
    compact_on_stop: bool
    stop_timeout: float | str | timedelta
    maintenance_tasks: int
    max_entry_bytes: int
    checkpoint_interval: float | str | timedelta
    keep_checkpoints: int
    gc_interval: float | str | timedelta
    store_patience: float | str | timedelta
    commit_to_kafka: str | None
    ledger: Place | None
    cache_bytes: int | None
    metrics_port: int | None
    metrics_host: str
    ui_port: int | None
    ui_host: str
    checkpoint_location: Place | None
    storage_options: Mapping[str, str] | None
