"""`headgate verify`: check that every committed row is in the table, exactly once. Reads only; fences nobody."""

from __future__ import annotations

from typing import Any

import click

from headgate.cli.errors import exit_code
from headgate.cli.options.decoder import decoder_for, recorded_decoder_options
from headgate.cli.options.kafka import kafka_option, servers_option
from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.output import Output, TextOutput, output_option
from headgate.errors import DataLoss, InvalidInput
from headgate.streaming.verify.verify import Verification
from headgate.streaming.verify.verify import verify as check
from headgate.table.table import open_table


@click.command(
    epilog="""\b
Example:
  headgate verify ./orders --servers 127.0.0.1:9092 --topic orders
  headgate verify ./orders --servers 127.0.0.1:9092 --topic orders --output json
  headgate verify ./old --servers 127.0.0.1:9092 --topic orders --decode debezium
"""
)
@table_argument
@servers_option(required=True)
@click.option(
    "--topic", "topics", required=True, multiple=True, help="A topic that the table's streams read; name all of them."
)
@recorded_decoder_options
@kafka_option
@storage_option
@output_option
def verify(
    uri: str,
    servers: str,
    topics: tuple[str, ...],
    decode_as: str | None,
    registry: str | None,
    registry_auth: str | None,
    kafka_options: dict[str, str],
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Read the committed offset ranges of the topics again and compare them with TABLE, row by row.

    On a table with a key, it compares the newest row of each key, deletes included. Dead letters must be exactly the
    records that cannot be decoded. If rows are lost, duplicated or wrong, it exits 6 and shows the first ones with key,
    column, expected and found value. Streams may keep running. Rows that were not written by a stream count as wrong.
    Records that a rewind read again are expected again; skipped ones are not: `ranges` lists every pass.

    Records are decoded with the decoder that their stream recorded and the columns of that time; --decode is for
    streams that recorded none. Rows computed in Spark cannot be computed again: their offsets and count are compared,
    and `unjudged` says so.

    Exits 1 if a difference may not be a loss: rows that `headgate wal expire` removed, or an unknown decoder; `doubts`
    says which.
    """
    table = open_table(uri, storage_options=storage_options or None)
    decode = None if decode_as is None else decoder_for(table, decode_as, registry, registry_auth)
    if registry is not None and decode is None:
        raise InvalidInput("--registry needs --decode; a recorded registry is used by itself.")
    report = check(
        table, servers=servers, topic=topics, decode=decode, registry_auth=registry_auth, kafka_options=kafka_options
    )
    value = report.to_dict()
    if isinstance(output, TextOutput):
        value["ranges"] = [_in_short(one) for one in value["ranges"]]
    output.record(_title(report), value)
    unsure = report.may_be_expired or report.doubts
    click.get_current_context().exit(0 if report.holds else 1 if unsure else exit_code(DataLoss))


def _in_short(ranges: dict[str, Any]) -> dict[str, Any]:
    """A range as one line of a table: fields that say nothing unusual are left out."""
    told = {name: ranges[name] for name in ("stream", "topic", "partition", "from", "until")}
    if not ranges["start_known"]:
        told["start_known"] = False
    if ranges["ended_by_rewind"] is not None:
        told["ended_by_rewind"] = ranges["ended_by_rewind"]
    parts = ranges["decoded_by"]
    names = [f"{part['decoder']}{' (assumed)' * part['assumed']}" for part in parts]
    several = [f"{name} from {part['from']}" for name, part in zip(names, parts, strict=True)]
    return {**told, "decoded_by": ", ".join(several if len(parts) > 1 else names)}


def _title(report: Verification) -> str:
    if report.holds:
        judged = ", as far as it can be checked" if report.unjudged else ""
        return "Every row is there, once" + (" in each pass: the stream was rewound" if report.rewinds else "") + judged
    if report.may_be_expired:
        return "Rows are missing, perhaps those that `headgate wal expire` removed; nothing is duplicated or wrong"
    if report.late and not (report.difference or report.dead_letters_lost or report.dead_letters_extra):
        return "All committed rows are there, but a stream did not begin with its first batch: EARLIER ROWS ARE MISSING"
    if report.doubts:
        return "Table and topic differ, but that may not be a loss:  " + " ".join(report.doubts)
    return "NOT as committed"
