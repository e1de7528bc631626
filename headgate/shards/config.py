"""How a ShardWriter works: one frozen value, checked when it is made."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field, fields
from enum import Enum

from headgate.errors import InvalidInput
from headgate.retry import Retry
from headgate.shards.wal.entry import Compression

MAX_SECONDS = 366 * 24 * 3600
"""A year. With a much larger number of seconds the platform's clock refuses to wait at all."""

_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number of seconds"}


class Use(Enum):
    """What a mode does with an option."""

    READ = "read"
    REUSED = "reused"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class WriterOption:
    """What an option means, and which mode uses it. MemTable mode uses all of them."""

    name: str
    text: str
    wal_only: Use = Use.READ


OPTIONS = (
    WriterOption(
        "enable_memtable",
        "true also keeps rows in a MemTable and flushes it to SSTables; false is WAL-only mode: rows are "
        "stored in the WAL only, and only pending puts are held in memory.",
    ),
    WriterOption(
        "durable_write",
        "true: `put` writes at once and returns when the rows are durable; false: it returns a handle to wait for.",
    ),
    WriterOption(
        "max_wal_buffer_size",
        "memory for rows that are queued or being written; when it is full, puts wait. Writing starts when "
        "half of it is queued; an entry takes all rows queued by then. A put is never split, so one put may "
        "exceed it.",
    ),
    WriterOption("max_wal_flush_interval", "how long a put stays queued at most if nobody waits for it."),
    WriterOption(
        "max_unflushed_memtable_bytes",
        "the memory limit at which puts block. In WAL-only mode it is the limit of the pending queue: while an "
        "append is retried, puts are still accepted up to it.",
        Use.REUSED,
    ),
    WriterOption("backpressure_log_interval", "how often a writer that waits at its memory limit logs it."),
    WriterOption("retry", "pauses between retries of a store operation; after the last one the writer is Poisoned."),
    WriterOption("compression", 'compression codec of WAL entries: None, "lz4" or "zstd".'),
    WriterOption(
        "maintained_indexes",
        "names of the base's full-text indexes that SSTables get too; empty means all. Must be empty in WAL-only mode.",
    ),
    WriterOption("max_memtable_size", "size at which a MemTable is flushed.", Use.IGNORED),
    WriterOption(
        "max_memtable_rows",
        "the same, in rows. A put is never split, so one put may exceed it (native Lance refuses such a put).",
        Use.IGNORED,
    ),
    WriterOption("max_memtable_batches", "the same, in puts.", Use.IGNORED),
)
"""Every option, in order: source of WriterConfig's docstring and of the table in docs/concepts/modes.md."""


@dataclass(frozen=True)
class WriterConfig:
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


def option_table() -> str:
    """The options as the docs show them, in Markdown."""
    rows = (f"| `{one.name}` | read | {one.wal_only.value} | {one.text} |" for one in OPTIONS)
    return "\n".join(["| option | MemTable mode | WAL-only mode | what it does |", "|---|---|---|---|", *rows])


def _docstring() -> str:
    lines = ["Options of a shard writer. Sizes in bytes, times in seconds.", ""]
    for one in OPTIONS:
        ignored = " Ignored in WAL-only mode." if one.wal_only is Use.IGNORED else ""
        lines += textwrap.wrap(f"{one.name}: {one.text}{ignored}", 116, subsequent_indent="    ")
    return "\n".join(lines)


WriterConfig.__doc__ = _docstring()
