"""`headgate …`: what an operator types.

A command's module is imported when the command runs, so that `headgate --help` loads neither
Spark nor Lance. Every command takes `--output text|json`; every failure is one sentence and a
next step on stderr, with an exit code by class of error.
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
from headgate.connectors.lance.log import quiet_lance
from headgate.errors import HeadgateError


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command by the place of its code, with the line that the list of commands shows."""

    place: str
    summary: str

    @property
    def exists(self) -> bool:
        """Whether the code is there. Looks for the module without importing it."""
        return find_spec(self.place.partition(":")[0]) is not None

    def load(self) -> click.Command:
        """Import it. Raises MissingExtra where it needs a package that is not installed."""
        module, _, name = self.place.partition(":")
        with needs():
            command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


COMMANDS = {
    "demo": Lazy("headgate.cli.commands.demo:demo", "See a topic flow into a table, on this machine."),
    "ingest": Lazy("headgate.cli.commands.ingest:ingest", "Run a stream from a Kafka topic into a table."),
    "status": Lazy("headgate.cli.commands.status:status", "How a table, its shards and its streams stand."),
    "ui": Lazy("headgate.cli.commands.ui:ui", "Tables and streams in the browser."),
    "verify": Lazy("headgate.cli.commands.verify:verify", "Prove that every committed row is there, once."),
    "table": Lazy("headgate.cli.commands.table:table", "Make tables, and read them."),
    "shard": Lazy("headgate.cli.commands.shard:shard", "Look at shards: who owns them, and what they hold."),
    "wal": Lazy("headgate.cli.commands.wal:wal", "Look at a shard's write-ahead log."),
    "dead-letters": Lazy("headgate.cli.commands.dead_letters:dead_letters", "The records that were refused."),
    "ledger": Lazy("headgate.cli.commands.ledger:ledger", "The commit log as a Delta table."),
    "checkpoint": Lazy("headgate.cli.commands.checkpoint:checkpoint", "Name and pin a table as it is now."),
    "clone": Lazy("headgate.cli.commands.clone:clone", "Make a table of its own out of another, fresh rows included."),
    "compact": Lazy("headgate.cli.commands.compact:compact", "Take SSTables into the base."),
    "gc": Lazy("headgate.cli.commands.gc:gc", "Delete what nobody can need any more."),
    "index": Lazy("headgate.cli.commands.index:index", "Build full-text indexes."),
    "search": Lazy("headgate.cli.commands.search:search", "Find rows by their words, fresh ones included."),
    "recover": Lazy("headgate.cli.commands.recover:recover", "Compare Spark's checkpoint with the table, and mend it."),
    "rewind": Lazy("headgate.cli.commands.rewind:rewind", "Let a stream read again, or skip, deliberately."),
    "fsck": Lazy("headgate.cli.commands.fsck:fsck", "Check every object of a table."),
    "doctor": Lazy("headgate.cli.commands.doctor:doctor", "Whether this machine, a store and Kafka are fit."),
    "cost": Lazy("headgate.cli.commands.cost:cost", "Requests and dollars per month of a stream on S3."),
    "jars": Lazy("headgate.cli.commands.jars:jars", "The jars that Spark and the local broker need."),
    "kafka": Lazy("headgate.cli.commands.kafka:kafka", "Run a broker on this machine, to try things out."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported one by one, and only those that are there."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return [name for name, command in self._lazy.items() if command.exists]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the one command that is asked for."""
        command = self._lazy.get(cmd_name)
        return command.load() if command is not None and command.exists else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the table alone: help imports nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy[name].summary) for name in self.list_commands(ctx)])


class Root(LazyGroup):
    """The outermost group: the only place where errors become text and exit codes."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run and exit.

        A failure of ours or a call that cannot be parsed goes to stderr in the output that was asked
        for. Ctrl-C exits 130. A reader that went away is no failure to talk about. Anything else is a
        fault of this program and shows its traceback.
        """
        arguments = list(sys.argv[1:] if args is None else args)
        options["standalone_mode"] = False
        quiet_lance()
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
  headgate shard show s3://bucket/orders --storage-option region=eu-west-1
  headgate wal tail ./orders bucket-00000 --follow --output json

\b
Exit codes:
{exit_table()}
"""


@click.group(cls=Root, lazy=COMMANDS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headgate")
def main() -> None:
    """A Kafka topic flows through Spark into a Lance table, exactly once."""
