"""`headgate fsck`: check every object of a table. Reads only; fences nobody."""

from __future__ import annotations

import click

from headgate.cli.errors import exit_code
from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.output import Output, TextOutput, output_option
from headgate.cli.text.findings import tell_findings
from headgate.errors import DataLoss, HeadgateError
from headgate.table.fsck import TableReport
from headgate.table.fsck import fsck as check


@click.command(
    epilog="""\b
Example:
  headgate fsck ./orders
  headgate fsck s3://bucket/orders --storage-option region=eu-west-1 --output json

\b
Exit codes: 0 no problems, 1 warnings only, 6 something durable is missing or damaged.
"""
)
@table_argument
@storage_option
@output_option
def fsck(uri: str, storage_options: dict[str, str], output: Output) -> None:
    """Check every record, manifest, WAL entry, SSTable, dead letter and checkpoint of TABLE.

    Checks that nothing committed is missing or duplicated, that no WAL has a gap, and that every fence is in place.
    Each finding has a code and says what is lost and what to do. Streams may keep running. Nothing is written.
    """
    report = check(uri, storage_options=storage_options or None)
    value = report.to_dict()
    if isinstance(output, TextOutput) and report.findings:
        tell_findings(report.findings)
        value = {key: item for key, item in value.items() if key != "findings"}
    output.record("No problems found" if not report.findings else "Problems found", value)
    click.get_current_context().exit(code_of(report))


def code_of(report: TableReport) -> int:
    """The exit code."""
    if not report.findings:
        return 0
    return exit_code(DataLoss if report.checked.errors else HeadgateError)
