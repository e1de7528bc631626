"""A summary of dead letters: how many per reason, column and partition, with an example each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.checkpoints.log.names import check_stream
from headgate.shards.home.stores import Place
from headgate.table.table import Table, as_table

_FIELD = r"^column '(?P<field>[^']*)'"
_BY = ("stream", "topic", "partition", "reason", "field")


@dataclass(frozen=True)
class LetterGroup:
    """Dead letters of one stream, partition, reason and column."""

    stream: str
    topic: str
    partition: int
    reason: str
    """The error without what differs between records: values become …, numbers become N."""
    field: str | None
    """The column that a value did not fit; None if the whole record is bad."""
    letters: int
    waiting: int
    """Letters that no replay has turned into rows."""
    example: Mapping[str, Any]
    """The first letter of the group: offset, error, key and value."""


def dead_letter_summary(
    table: Table | Place, *, stream: str | None = None, storage_options: Mapping[str, str] | None = None
) -> list[LetterGroup]:
    """Summarize the committed dead letters of a stream, or of all streams, the largest group first. Reads all of them;
    writes nothing.

    Raises NotFound (no such stream), InvalidInput, DataLoss, Transient.
    """
    table = as_table(table, storage_options)
    if stream is not None:
        check_stream(table.home.records, stream, table.uri)
    found: dict[tuple[Any, ...], LetterGroup] = {}
    for letters in read_dead_letters(table.home, stream):
        for key, group in _groups(letters).items():
            before = found.get(key)
            found[key] = (
                group
                if before is None
                else replace(before, letters=before.letters + group.letters, waiting=before.waiting + group.waiting)
            )
    return sorted(found.values(), key=lambda one: (-one.letters, one.stream, one.topic, one.partition, one.reason))


def _groups(letters: pa.Table) -> dict[tuple[Any, ...], LetterGroup]:
    """The groups of one entry."""
    errors = letters.column("error").combine_chunks()
    rest = pc.replace_substring_regex(errors, _FIELD, "")
    reasons = pc.replace_substring_regex(pc.replace_substring_regex(rest, r"'[^']*'?", "…"), r"\b[0-9]+\b", "N")
    named = letters.append_column("reason", pc.utf8_ltrim(reasons, ": ")).append_column(
        "field", pc.struct_field(pc.extract_regex(errors, _FIELD), "field")
    )
    numbered = named.append_column("row", pa.array(range(letters.num_rows), pa.int64())).append_column(
        "waits", pc.invert(letters.column("replayed")).cast(pa.int64())
    )
    counted = numbered.group_by(list(_BY)).aggregate([("row", "count"), ("waits", "sum"), ("row", "min")])
    examples = letters.select(["offset", "error", "key", "value"]).take(counted.column("row_min")).to_pylist()
    return {
        tuple(one[name] for name in _BY): LetterGroup(
            **{name: one[name] for name in _BY},
            letters=one["row_count"],
            waiting=one["waits_sum"],
            example=example,
        )
        for one, example in zip(counted.to_pylist(), examples, strict=True)
    }
