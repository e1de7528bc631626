"""`headgate …`: the command line.

A command's module is imported when the command runs, so that `headgate --help` loads neither Spark nor Lance. Every
command takes `--output text|json`; every failure is one sentence and a next step on stderr. The exit code tells the
class of error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import click

from headgate.cli.errors import INTERRUPTED, exit_code, exit_table, usage_error
from headgate.cli.output import output_asked_for
from headgate.connectors.extras import needs
from headgate.errors import HeadgateError, nearest


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is imported when it is used, with its line for the command list."""

    place: str
    summary: str

    @property
    def exists(self) -> bool:
        """True if the module exists. Does not import it."""
        return find_spec(self.place.partition(":")[0]) is not None

    def load(self) -> click.Command:
        """Import it. Raises MissingExtra if it needs a package that is not installed."""
        module, _, name = self.place.partition(":")
        with needs():
            command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


COMMANDS = {
    "demo": Lazy("headgate.cli.commands.demo:demo", "Run the whole pipeline once on this machine."),
    "ingest": Lazy("headgate.cli.commands.ingest:ingest", "Stream Kafka topics into a table."),
    "status": Lazy("headgate.cli.commands.status:status", "Show a table, its shards, streams and lag."),
    "ui": Lazy("headgate.cli.commands.ui:ui", "Show tables and streams in the browser."),
    "verify": Lazy("headgate.cli.commands.verify:verify", "Compare a table with its topic, row by row."),
    "table": Lazy("headgate.cli.commands.table:table", "Create tables, change and read them."),
    "shard": Lazy("headgate.cli.commands.shard:shard", "Show shards: owner, SSTables, WAL."),
    "wal": Lazy("headgate.cli.commands.wal:wal", "Show or expire a shard's write-ahead log."),
    "dead-letters": Lazy("headgate.cli.commands.dead_letters:dead_letters", "Show, forward or replay refused records."),
    "ledger": Lazy("headgate.cli.commands.ledger:ledger", "Rebuild the commit log's Delta table."),
    "checkpoint": Lazy("headgate.cli.commands.checkpoint:checkpoint", "Name and pin the state of a table."),
    "clone": Lazy("headgate.cli.commands.clone:clone", "Copy a table, fresh rows included."),
    "compact": Lazy("headgate.cli.commands.compact:compact", "Merge SSTables into the base."),
    "gc": Lazy("headgate.cli.commands.gc:gc", "Delete files that nothing needs any more."),
    "index": Lazy("headgate.cli.commands.index:index", "Build and show indexes for search."),
    "search": Lazy("headgate.cli.commands.search:search", "Search rows, fresh ones included."),
    "recover": Lazy("headgate.cli.commands.recover:recover", "Compare or rebuild Spark's checkpoint."),
    "rewind": Lazy("headgate.cli.commands.rewind:rewind", "Move a stream to other offsets."),
    "fsck": Lazy("headgate.cli.commands.fsck:fsck", "Check every object of a table."),
    "doctor": Lazy("headgate.cli.commands.doctor:doctor", "Check this machine, a store and Kafka."),
    "cost": Lazy("headgate.cli.commands.cost:cost", "Estimate a stream's S3 cost per month."),
    "jars": Lazy("headgate.cli.commands.jars:jars", "Fetch and list the jars for Spark and Kafka."),
    "kafka": Lazy("headgate.cli.commands.kafka:kafka", "Run a local Kafka broker, to try things out."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported one by one, on demand; missing ones are left out."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return [name for name, command in self._lazy.items() if command.exists]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the requested command only."""
        command = self._lazy.get(cmd_name)
        return command.load() if command is not None and command.exists else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the nearest name: click only knows commands that are loaded."""
        near = nearest(args[0], self.list_commands(ctx))
        if near is not None and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the table alone: help imports nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy[name].summary) for name in self.list_commands(ctx)])


class Root(LazyGroup):
    """The outermost group: the only place where errors become text and exit codes."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run and exit.

        HeadgateErrors and invalid arguments go to stderr in the requested output format. Ctrl-C exits 130. A closed
        pipe ends the command quietly. Anything else is a bug and shows its traceback.
        """
        arguments = list(sys.argv[1:] if args is None else args)
        options["standalone_mode"] = False
        try:
            code = super().main(arguments, *rest, **options)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.ClickException as error:
            code = _reported(usage_error(error), arguments)
        except HeadgateError as error:
            code = _reported(error, arguments)
        except click.Abort:
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def _reported(error: HeadgateError, arguments: Sequence[str]) -> int:
    output_asked_for(arguments).error(error)
    return exit_code(type(error))


EPILOG = f"""\b
Example:
  headgate demo
  headgate search ./orders "late delivery" -k 3
  headgate status s3://bucket/orders --storage-option region=eu-west-1

\b
Exit codes:
{exit_table()}
"""


@click.group(cls=Root, lazy=COMMANDS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headgate")
def main() -> None:
    """Stream Kafka topics through Spark into Lance tables, every row exactly once."""
