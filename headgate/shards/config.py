"""How a ShardWriter works: one frozen value, checked when it is made."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field, fields
from enum import Enum

from headgate.errors import InvalidInput
from headgate.retry import Retry
from headgate.shards.wal.entry import Compression

MAX_SECONDS = 366 * 24 * 3600
"""A year: above some number of seconds the platform's clock refuses to wait at all."""

_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number of seconds"}


class Use(Enum):
    """What a mode does with an option."""

    READ = "read"
    REUSED = "reused"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class WriterOption:
    """What an option means, and which mode uses it. MemTable mode reads every one."""

    name: str
    text: str
    wal_only: Use = Use.READ


OPTIONS = (
    WriterOption(
        "enable_memtable",
        "true keeps rows in a MemTable as well and flushes it to SSTables; false is WAL-only mode: the WAL is all there"
        " is, and nothing but pending puts is held in memory.",
    ),
    WriterOption(
        "durable_write",
        "true makes `put` return when the rows are durable, and starts writing at once; false makes it return a handle"
        " to wait for.",
    ),
    WriterOption(
        "max_wal_buffer_size",
        "what may wait in memory, queued and being written, while the store works; a put waits once it is reached."
        " Writing starts when half of it is queued, so that the rest fills meanwhile; an entry takes what is queued by"
        " then, up to all of it. A put is never split, so one put may go beyond it.",
    ),
    WriterOption("max_wal_flush_interval", "the longest time a put that nobody waits for stays queued."),
    WriterOption(
        "max_unflushed_memtable_bytes",
        "the budget at which puts block until bytes have drained. In WAL-only mode it is the budget of the pending"
        " queue: while an append is being retried, puts are still taken up to it.",
        Use.REUSED,
    ),
    WriterOption(
        "backpressure_log_interval", "a writer that waits at its budget says so in the log, once per interval."
    ),
    WriterOption("retry", "pauses between tries of a store operation; when they are used up the writer is Poisoned."),
    WriterOption("compression", 'of the record batches in an entry: None, "lz4" or "zstd".'),
    WriterOption(
        "maintained_indexes",
        "names of the base's full-text indexes that SSTables have as well; empty means all of them. Must be empty in"
        " WAL-only mode: open refuses.",
    ),
    WriterOption("max_memtable_size", "a MemTable of this size is frozen and flushed.", Use.IGNORED),
    WriterOption(
        "max_memtable_rows",
        "the same, by rows. A put is never split, so one put may go beyond it (native refuses such a put).",
        Use.IGNORED,
    ),
    WriterOption("max_memtable_batches", "the same, by puts.", Use.IGNORED),
)
"""Every option, in order: the docstring of WriterConfig and the table in docs/concepts/modes.md are made of this."""


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
    lines = ["Options of a writer. Sizes in bytes, times in seconds.", ""]
    for one in OPTIONS:
        ignored = " Ignored in WAL-only mode." if one.wal_only is Use.IGNORED else ""
        lines += textwrap.wrap(f"{one.name}: {one.text}{ignored}", 116, subsequent_indent="    ")
    return "\n".join(lines)


WriterConfig.__doc__ = _docstring()
