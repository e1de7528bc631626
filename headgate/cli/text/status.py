"""The status of a table as text: streams, partitions, shards, and Spark's batches with WAL positions and offsets.

Takes the plain values that `--output json` prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.text import printable, runs

Value = Mapping[str, Any]


def status_tables(status: Value) -> RenderableType:
    title = Text(f"{status['uri']}  ({', '.join(status['primary_key']) or 'no key'}, {status['sharding']})")
    parts: list[RenderableType] = [title, Text()]
    parts.append(_streams(status["streams"]) if status["streams"] else Text("No stream has written to it yet."))
    parts += [_cell(rewind_line(one["stream"], one["rewound"])) for one in status["streams"] if one["rewound"]]
    parts += [
        _cell(f"{one['stream']}: WAL only, so plain Lance readers see none of its rows.")
        for one in status["streams"]
        if one["mode"] == "wal"
    ]
    if status["partitions"]:
        parts.append(_partitions(status["partitions"]))
    if status["shards"]:
        parts.append(_shards(status["shards"]))
    if status["maintenance"]:
        parts.append(_maintenance(status["maintenance"]))
        parts += [_cell(line) for one in status["maintenance"] for line in (*_caches(one), *_trouble(one))]
    if status["readers"]:
        parts.append(_readers(status["readers"]))
    if status["batches"]:
        parts.append(batches_table(status["batches"]))
    caches = status["caches"]
    held = ", ".join(f"{name} {nbytes:,}" for name, nbytes in caches["nbytes"].items() if nbytes)
    if held:
        parts.append(Text(f"Caches of this process, limit {caches['limit']:,} B: {held}"))
    return Group(*parts)


def batches_table(batches: Sequence[Value], title: str = "Batches") -> Table:
    """One line per batch and shard: Spark's batch, the record that committed it, its WAL positions, its offsets."""
    several = len({batch["stream"] for batch in batches}) > 1
    stream = ["stream"] if several else []
    columns = [*stream, ">batch", ">commit", ">rows", ">dead", "shard", ">WAL", "Kafka offsets"]
    table = _table(title, columns)
    for batch in batches:
        begin = [batch["stream"]] * several + [
            _number(batch[key]) for key in ("batch", "sequence", "rows", "dead_letters")
        ]
        lines = list(_shard_lines(batch)) or [("-", "-", _ranges(batch["offsets"]))]
        for number, line in enumerate(lines):
            table.add_row(*map(_cell, [*(begin if number == 0 else [""] * len(begin)), *line]))
    return table


def _shard_lines(batch: Value) -> Iterable[tuple[str, str, str]]:
    """A partition's shard shows that partition's offsets; other shards share all offsets, shown once."""
    shown = False
    for shard, positions in sorted(batch["positions"].items()):
        own = [part for part in batch["offsets"] if shard == f"partition:{part['topic']}:{part['partition']}"]
        ranges = _ranges(own or ([] if shown else batch["offsets"]))
        shown = shown or not own
        yield shard, runs(positions), ranges


def _ranges(offsets: Sequence[Value]) -> str:
    return ", ".join(f"{part['topic']}/{part['partition']} [{part['from']}, {part['until']})" for part in offsets)


def _streams(streams: Sequence[Value]) -> Padding:
    columns = ["stream", ">batch", ">commit", ">rows", "recent rows", ">lag", "newest record", "query", "opened"]
    keys = ("stream", "batch", "sequence", "rows", "recent", "lag", "newest", "query", "opened_at")
    return _filled("Streams", columns, keys, [{**one, **_shortened(one)} for one in streams])


def rewind_line(stream: str, rewound: Value) -> str:
    """One line of the last rewind, with who, when and why."""
    who = f" by {rewound['by']}" if rewound["by"] else ""
    why = f" ({rewound['reason']})" if rewound["reason"] else ""
    again, skipped = rewound["offsets_again"], rewound["offsets_skipped"]
    return (
        f"{stream}: rewound by record {rewound['record']} at {rewound['rewound_at']}{who}{why}: {again:,} offsets "
        f"again, {skipped:,} skipped; {rewound['batches_since']} batches since"
    )


def _shortened(stream: Value) -> Value:
    return {
        "recent": f"{stream['recent_rows']:,} in {stream['recent_batches']}",
        "newest": (stream["newest_record"] or "-")[:19],
        "query": (stream["query"] or "-")[:8],
        "opened_at": (stream["opened_at"] or "-")[:16],
    }


def _partitions(partitions: Sequence[Value]) -> Padding:
    columns = ["stream", "topic", ">partition", ">committed", ">end", ">lag"]
    return _filled("Partitions", columns, ("stream", "topic", "partition", "committed", "end", "lag"), partitions)


def _shards(shards: Sequence[Value]) -> Padding:
    columns = ["shard", "owner", ">epoch", ">tip", ">replay_after", ">unflushed B", "native-safe", "problems"]
    keys = ["name", "owner", "epoch", "tip", "replay_after", "unflushed_bytes", "native_safe", "problems"]
    if not any(shard["problems"] for shard in shards):
        columns.pop()
        keys.pop()
    return _filled("Shards", columns, keys, shards)


def _maintenance(states: Sequence[Value]) -> Padding:
    counts = ("sstables", "flushes", "compactions", "indexed", "checkpoints")
    heads = (">SSTables", ">flushes", ">compactions", ">indexed", ">checkpoints")
    columns = ["stream", ">unflushed B", *heads, "garbage collected", "running", "as of"]
    keys = ("stream", "unflushed_bytes", *counts, "collected", "running", "at")
    rows = [{**one, "running": list(one["running"]), "collected": _collected(one["collected"])} for one in states]
    return _filled("Maintenance", columns, keys, rows)


def _collected(done: Value | None) -> str | None:
    return None if done is None else f"{done['objects']:,} objects, {done['nbytes']:,} B, {done['at']}"


def _caches(state: Value) -> Iterable[str]:
    if state["cached_bytes"] is not None:
        held, limit = state["cached_bytes"], state["cache_limit"]
        yield f"{state['stream']}: the caches of its driver hold {held:,} of {limit:,} B."


def _readers(readers: Sequence[Value]) -> Padding:
    columns = ["reader of the log", "stream", ">read", ">behind", "held until", "note"]
    return _filled("Readers", columns, ("reader", "stream", "read", "behind", "held_until", "note"), readers)


def _trouble(state: Value) -> Iterable[str]:
    """Warnings for the operator: delayed batches, failing jobs, things to do."""
    if state["base_since"]:
        since = state["base_since"]
        yield f"{state['stream']}: rows since {since} are not in the base yet, so plain Lance readers do not see them."
    if state["delayed"]:
        yield f"{state['stream']}: batches wait since {state['delayed']['since']}: {state['delayed']['detail']}."
    for one in state["failures"]:
        yield f"{state['stream']}: {one['job']} failed {one['times']} times since {one['since']}: {one['error']}"
    for kept in (state["collected"] or {}).get("kept", ()):
        yield f"{state['stream']}: garbage collection keeps {kept}"
    for note in state["notes"]:
        yield f"{state['stream']}: {note}"


def _filled(title: str, columns: Sequence[str], keys: Sequence[str], values: Sequence[Value]) -> Padding:
    table = _table(title, columns)
    for value in values:
        table.add_row(*(_cell(_number(value[key])) for key in keys))
    for column, name, key in zip(table.columns, columns, keys, strict=True):
        if name.startswith(">"):
            # A number that is folded is another one.
            column.min_width = max((len(_number(value[key])) for value in values), default=0)
    return Padding(table, (0, 0, 1, 0))


def _table(title: str, columns: Sequence[str]) -> Table:
    """A table; columns whose name starts with > are right-aligned."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    return table


def _number(item: Any) -> str:
    if item is None or item == []:
        return "-"
    if isinstance(item, bool):
        return "yes" if item else "no"
    return " ".join(map(str, item)) if isinstance(item, list) else str(item)


def _cell(text: str) -> Text:
    return Text(printable(text))
