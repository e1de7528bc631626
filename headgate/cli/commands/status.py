"""`headgate status`: the state of a table, its shards and its streams. Reads only; fences nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from headgate import clock
from headgate.caches import cache_usage
from headgate.checkpoints.jobs.state import read_state
from headgate.checkpoints.log.pins import PinStore
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.rewind_plan import rewind_value
from headgate.cli.commands.shard import code_of
from headgate.cli.options.duration import Duration
from headgate.cli.options.kafka import consumer_of, kafka_option, servers_option
from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.output import Output, TextOutput, output_option
from headgate.cli.text.status import status_tables
from headgate.errors import InvalidInput
from headgate.table.look import Place, look_at
from headgate.table.status import Consumer, StreamStatus, batch_value, instant_text, stream_statuses
from headgate.table.table import Table, open_table


@click.command(
    epilog="""\b
Example:
  headgate status ./orders
  headgate status ./orders --servers 127.0.0.1:9092 --watch
  headgate status s3://bucket/orders --storage-option region=eu-west-1 --output json
"""
)
@table_argument
@servers_option(", to show the lag too.")
@click.option("--batches", type=click.IntRange(min=0), default=5, show_default=True, metavar="N", help="Last batches.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--every",
    type=Duration(timedelta(milliseconds=100)),
    default="2s",
    show_default=True,
    metavar="TIME",
    help="With --watch.",
)
@kafka_option
@storage_option
@output_option
def status(
    uri: str,
    servers: str | None,
    batches: int,
    watch: bool,
    every: timedelta,
    kafka_options: dict[str, str],
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Show the streams of TABLE, what its shards hold, and Spark's last batches with their WAL positions and Kafka
    offsets.

    If a shard has missing or damaged parts, the command names it and exits 6.
    """
    if kafka_options and servers is None:
        raise InvalidInput("--kafka-option needs --servers.")
    table = open_table(uri, storage_options=storage_options or None)
    consumer = consumer_of(servers, kafka_options)
    if watch:
        _watch(output, table, consumer, batches, every.total_seconds())
        return
    found = status_of(table, consumer, batches)
    if isinstance(output, TextOutput):
        Console(highlight=False).print(status_tables(found), crop=False)
    else:
        output.record(table.uri, found)
    click.get_current_context().exit(max((shard["exit_code"] for shard in found["shards"]), default=0))


def status_of(table: Table, consumer: Consumer | None = None, batches: int = 5) -> dict[str, Any]:
    """The whole status, as plain values."""
    streams = stream_statuses(table, consumer)
    shards = _shards(table, streams)
    recent = [record for one in streams for record in list(one.head.recent.values())[-batches:] if batches]
    return {
        "uri": table.uri,
        "table_id": str(table.table_id),
        "primary_key": list(table.primary_key),
        "sharding": str(table.sharding),
        "streams": [_stream(one) for one in streams],
        "partitions": [
            {
                "stream": one.head.stream,
                "topic": part.topic,
                "partition": part.partition,
                "committed": part.committed,
                "end": part.end,
                "lag": part.lag,
            }
            for one in streams
            for part in one.partitions
        ],
        "shards": shards,
        "maintenance": _maintenance(table, streams, shards),
        "readers": _readers(table, streams),
        "caches": asdict(cache_usage()),
        "batches": [batch_value(record) for record in recent],
    }


def _stream(status: StreamStatus) -> dict[str, Any]:
    """For older batches the log keeps the offsets, but not the number of rows."""
    head = status.head
    last, opened = head.last, head.opened
    return {
        "stream": head.stream,
        "batch": last and last.batch_id,
        "query": last.query_id if last else opened and opened.query_id,
        "sequence": head.sequence,
        "rows": last and last.rows,
        "mode": last and last.mode,
        "recent_batches": len(head.recent),
        "recent_rows": sum(record.rows for record in head.recent.values()),
        "recent_dead_letters": sum(
            part.rows for record in head.recent.values() for part in record.dead_letters.values()
        ),
        "lag": status.lag,
        "newest_record": _newest(head),
        "opened_at": opened and opened.opened_at,
        "rewound": None if head.rewound is None else {**rewind_value(head.rewound), "batches_since": _since(head)},
    }


def _newest(head: Head) -> str | None:
    """When the newest record that is visible is of, by Kafka, as far as the log remembers batches one by one."""
    times = [record.record_times[1] for record in head.recent.values() if record.record_times is not None]
    return instant_text(max(times)) if times else None


def _since(head: Head) -> int:
    """Batches since the last rewind, as far as the log still lists them."""
    rewound = 0 if head.rewound is None else head.rewound.sequence
    return sum(record.sequence > rewound for record in head.recent.values())


def _maintenance(table: Table, streams: tuple[StreamStatus, ...], shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Maintenance as the drivers last reported it. A stopped or WAL-only stream may have reported nothing. If its
    shards hold nothing beside the base, reports about waiting rows are outdated and dropped.
    """
    waiting = {shard["owner"] for shard in shards if shard["sstables"] or shard["unflushed_entries"]}
    found = (read_state(table.home.records, one.head.stream) for one in streams)
    return [
        asdict(state if state.stream in waiting else replace(state, base_since=None))
        for state in found
        if state is not None
    ]


def _readers(table: Table, streams: tuple[StreamStatus, ...]) -> list[dict[str, Any]]:
    """The readers of the commit logs and their progress, ledgers and mirrors included."""
    found = []
    for one in PinStore(table.home.records, table.uri).list():
        pin = one.pin
        for stream in streams:
            head = stream.head
            if pin.records_of in (None, head.stream):
                read = pin.done.get(head.stream, 0)
                found.append(
                    {
                        "reader": pin.consumer,
                        "stream": head.stream,
                        "read": read,
                        "behind": max(0, head.sequence - read),
                        "held_until": one.expires_at.isoformat(timespec="seconds"),
                        "note": pin.note,
                    }
                )
    return found


def _shards(table: Table, streams: tuple[StreamStatus, ...]) -> list[dict[str, Any]]:
    names = [name for one in streams if one.head.opened for name in one.head.opened.shards]
    place = Place(table.home, {table.home.shard(name).id: name for name in (*table.sharding.known_names(), *names)})
    found = []
    for info in table.shards(names=names):
        if not info.claimed:
            continue
        look = look_at(place, table.home.shard(info.id))
        value = look.value()
        kept = ("shard", "name", "owner", "epoch", "tip", "replay_after", "unflushed_entries", "unflushed_bytes")
        found.append(
            {
                **{key: value[key] for key in kept},
                "sstables": value["sstable_count"],
                "native_safe": value["native_safe"],
                "problems": [problem["what"] for problem in value["problems"]],
                "exit_code": code_of(look),
            }
        )
    return found


def _watch(output: Output, table: Table, consumer: Consumer | None, batches: int, every: float) -> None:
    """Refresh in place on a terminal, else print one status after the other. Ctrl-C ends it with exit code 0."""

    def looks() -> Iterator[dict[str, Any]]:
        while True:
            yield status_of(table, consumer, batches)
            clock.sleep(every)

    console = Console(highlight=False)
    try:
        if not isinstance(output, TextOutput):
            output.rows((), looks())
        elif console.is_terminal:
            with Live(console=console, auto_refresh=False, screen=False) as live:
                for found in looks():
                    live.update(status_tables(found), refresh=True)
        else:
            for found in looks():
                console.print(status_tables(found), crop=False)
    except KeyboardInterrupt:
        return
