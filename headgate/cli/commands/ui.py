"""`headgate ui`: a console in the browser. Reads only; fences nobody."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from headgate import clock
from headgate.cli.options.kafka import consumer_of, kafka_option, servers_option
from headgate.cli.options.table import storage_option
from headgate.cli.output import Output, TextOutput, output_option
from headgate.cli.signals import quiet_logs
from headgate.connectors.extras import needs
from headgate.console import PORT
from headgate.console.watch.places import TablePlace
from headgate.errors import InvalidInput
from headgate.streaming.signals import stop_signals

if TYPE_CHECKING:
    from headgate.console.server import Console

POLL_SECONDS = 0.2


@click.command(
    epilog="""\b
Example:
  headgate ui ./orders
  headgate ui ./lake --servers 127.0.0.1:9092
  headgate ui s3://bucket/lake --storage-option region=eu-west-1 --port 9000
  HEADGATE_UI_TOKEN=$(openssl rand -hex 32) headgate ui ./lake --host 0.0.0.0 --allow-host lake.example

\b
Elsewhere than on 127.0.0.1 everybody needs a token: HEADGATE_UI_TOKEN, or one that is shown on a terminal.
"""
)
@click.argument("places", metavar="[TABLE|FOLDER]...", nargs=-1)
@servers_option(": then the lag is shown too.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port to listen on; 0: any free one."
)
@click.option("--allow-host", "names", multiple=True, metavar="NAME", help="A name by which a proxy asks for it.")
@kafka_option
@storage_option
@output_option
def ui(
    places: tuple[str, ...],
    servers: str | None,
    host: str,
    port: int,
    names: tuple[str, ...],
    kafka_options: dict[str, str],
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Show TABLEs, and the tables in FOLDERs (default: here), in the browser, until Ctrl-C or SIGTERM.

    Everything is read from the store, at most two requests a second for what moves by itself: the streams may run
    anywhere, or be stopped. Nothing is written, and nobody is fenced.
    """
    with needs():
        from headgate.console.server import Address, open_console
    if kafka_options and servers is None:
        raise InvalidInput("--kafka-option needs --servers.", advice="add --servers HOST:PORT")
    quiet_logs()
    tables = [TablePlace(place, storage_options) for place in places or (".",)]
    address = Address.of(host, port, names, can_show=sys.stderr.isatty())
    with stop_signals() as stop:
        console = open_console(tables, address, consumer=consumer_of(servers, kafka_options))
        try:
            tell(console, output)
            while not stop.asked():
                clock.sleep(POLL_SECONDS)
        finally:
            console.close()


def tell(console: Console, output: Output) -> None:
    """Where it is. A token is shown on a terminal only: what is written elsewhere may be kept."""
    url = console.url_with_token if sys.stderr.isatty() else console.url
    if isinstance(output, TextOutput):
        click.echo(f"The console is at {url}", err=True)
    else:
        output.record("console", {"url": console.url})
