"""How a ShardWriter works: one frozen value, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from headgate.errors import InvalidInput
from headgate.shards.entry import Compression
from headgate.shards.retry import Retry

MAX_SECONDS = 366 * 24 * 3600
"""A year: above some number of seconds the platform's clock refuses to wait at all."""

_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number of seconds"}


@dataclass(frozen=True)
class WriterConfig:
    """Options of a writer. Sizes in bytes, times in seconds.

    enable_memtable: true keeps rows in a MemTable as well and flushes it to SSTables; false is
        WAL-only mode: the WAL is all there is, and nothing but pending puts is held in memory.
    durable_write: true makes `put` return when the rows are durable, and starts writing at once;
        false makes it return a handle to wait for.
    max_wal_buffer_size: what may wait in memory, queued and being written, while the store works;
        a put waits once it is reached. Entries are cut at half of it, so that one half fills while
        the other is written. A put is never split, so one put may go beyond it.
    max_wal_flush_interval: the longest time a put that nobody waits for stays queued.
    max_unflushed_memtable_bytes: the budget at which puts block until bytes have drained. In
        WAL-only mode it is the budget of the pending queue: while an append is being retried, puts
        are still taken up to it.
    backpressure_log_interval: a writer that waits at its budget says so in the log, once per interval.
    retry: pauses between tries of a store operation; when they are used up the writer is Poisoned.
    compression: of the record batches in an entry: None, "lz4" or "zstd".
    maintained_indexes: names of the base's full-text indexes that MemTables and SSTables have as well;
        empty means all of them. Must be empty in WAL-only mode: open refuses.
    max_memtable_size: a MemTable of this size is frozen and flushed. Ignored in WAL-only mode.
    max_memtable_rows: the same, by rows. A put is never split, so one put may go beyond it (native
        refuses such a put). Ignored in WAL-only mode.
    max_memtable_batches: the same, by puts. Ignored in WAL-only mode.
    sync_indexed_write: true makes a search cover every put that a scan shows; false lets it answer
        from an index that is somewhat older. Scans and lookups are always exact. Ignored in WAL-only mode.
    async_index_buffer_rows: how many rows the older index may lack. Ignored in WAL-only mode.
    async_index_interval: how many seconds old it may be. Ignored in WAL-only mode.
    manifest_scan_batch_size: of native's search for the latest manifest. One LIST finds it here, so that it changes
        nothing. Ignored in WAL-only mode.
    """

    enable_memtable: bool = True
    durable_write: bool = True
    max_wal_buffer_size: int = 10 << 20
    max_wal_flush_interval: float = 0.1
    max_unflushed_memtable_bytes: int = 1 << 30
    backpressure_log_interval: float = 30.0
    retry: Retry = field(default=Retry())
    compression: Compression | None = None
    maintained_indexes: tuple[str, ...] = ()
    max_memtable_size: int = 256 << 20
    max_memtable_rows: int = 100_000
    max_memtable_batches: int = 8_000
    sync_indexed_write: bool = True
    async_index_buffer_rows: int = 10_000
    async_index_interval: float = 1.0
    manifest_scan_batch_size: int = 2

    def __post_init__(self) -> None:
        for option in fields(self):
            value, kind = getattr(self, option.name), type(option.default)
            if kind not in (bool, int, float):
                continue
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise InvalidInput(f"{option.name} must be {_KINDS[kind]}, got {value!r}.")
            if kind is not bool and not value > 0:
                raise InvalidInput(f"{option.name} must be above zero, got {value}.")
            if kind is float and value > MAX_SECONDS:
                raise InvalidInput(f"{option.name} must be at most {MAX_SECONDS} seconds, got {value}.")
        if self.compression not in (None, "lz4", "zstd"):
            raise InvalidInput(f"compression must be None, 'lz4' or 'zstd', got {self.compression!r}.")
