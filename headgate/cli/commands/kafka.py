"""`headgate kafka …`: run a one-node Kafka on this machine, and create topics, to try things out."""

from __future__ import annotations

from pathlib import Path

import click

from headgate.cli.options.kafka import servers_option
from headgate.cli.output import Output, TextOutput, output_option
from headgate.connectors.extras import needs
from headgate.connectors.jars.lists import cache_directory


@click.group()
def kafka() -> None:
    """Run a one-node Kafka on this machine, and create topics, to try things out."""


_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=lambda: cache_directory() / "kafka",
    show_default="kafka in the cache directory",
    help="Directory for configuration, data and log.",
)


@kafka.command()
@_directory
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="Default: the port of the last start, else a free one."
)
@output_option
def start(directory: Path, port: int | None, output: Output) -> None:
    """Start the broker in DIR and leave it running. Data of earlier runs is kept.

    Prints the address for clients. If the broker already runs, the command says so and starts nothing.

    \b
    Example:
      headgate kafka start --dir ./broker --port 9092
      headgate kafka start --output json
    """
    with needs():
        from headgate.dev.broker import BrokerFailed
        from headgate.dev.detached import start_detached

    try:
        broker, fresh = start_detached(directory, port)
    except BrokerFailed as error:
        if isinstance(output, TextOutput):
            click.echo(error.detail.pop("log_tail", "").strip(), err=True)  # as lines, before the one sentence
        raise
    output.record(
        "Kafka runs" if fresh else "Kafka already runs",
        {
            "servers": broker.servers,
            "pid": str(broker.pid),
            "dir": str(directory.absolute()),
            "already_running": not fresh,
        },
    )


@kafka.command()
@_directory
@output_option
def stop(directory: Path, output: Output) -> None:
    """Stop the broker in DIR. Its data stays. If none runs, the command says so.

    \b
    Example:
      headgate kafka stop --dir ./broker
    """
    with needs():
        from headgate.dev.detached import stop_detached

    stopped = stop_detached(directory)
    output.record(
        "No Kafka runs in this directory" if stopped is None else "Kafka stopped",
        {
            "servers": stopped.servers if stopped else None,
            "dir": str(directory.absolute()),
            "was_running": stopped is not None,
        },
    )


@kafka.command()
@click.argument("name")
@servers_option(required=True)
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--replication", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@output_option
def topic(name: str, servers: str, partitions: int, replication: int, output: Output) -> None:
    """Create topic NAME. If it exists, the command says so and changes nothing.

    \b
    Example:
      headgate kafka topic orders --servers 127.0.0.1:9092 --partitions 4
    """
    from headgate.connectors.kafka.topics import ensure_topic

    made = ensure_topic(servers, name, partitions, replication=replication)
    output.record(
        "Topic made" if made else "The topic exists already",
        {"topic": name, "servers": servers, "already_there": not made},
    )
