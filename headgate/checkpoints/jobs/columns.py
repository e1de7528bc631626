"""Column changes of a table while streams run: changes that native Lance allows and every layer can follow.

Promises:
1. Existing rows in entries, SSTables or the base are matched by field id: they show the new columns, and an added one
   is null. Nothing is rewritten.
2. What cannot be followed is refused before anything is written: another type, a column that may not be null, a column
   that rows are keyed, routed or indexed by, a name by which Lance would not find it. Native refuses the first two as
   well while the table has its MemWAL; nothing goes into a base that somebody overwrote, whatever columns it has.
3. A stream whose decoder follows the table loses no value of a batch that commits after the call has returned (R22).
   Others continue with their old columns until a restart.
4. A crash after any step leaves a table that reads as before or after the change. The same call completes it, and so
   does, for its own stream, the next look of maintenance.
5. An added column never shows values of a dropped one: its field id was not given before (`fields.add_numbered`).

Each change takes these steps: rehearse; note the change and the highest field id in the base's configuration; (1)
change the base, and sync it; (2) list the streams; (3, 4) per stream put a schema record and prove that drivers come to
it, see `CommitLog.put_schema_record`. A change that stands already: sync and 2 to 4 all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.decisions import is_another_table
from headgate.checkpoints.log.names import list_streams
from headgate.connectors.lance.base.damage import settle_base
from headgate.connectors.lance.base.notes import COLUMNS, TRIES, write_notes
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.lance.dataset import rehearse_change
from headgate.connectors.lance.datasets import field_ids, open_dataset
from headgate.connectors.lance.errors import native_error
from headgate.connectors.lance.fields import add_numbered, highest_field_id
from headgate.connectors.objects import without_secrets
from headgate.errors import Corrupt, Fenced, InvalidInput, Transient
from headgate.shards.rows.base import check_own
from headgate.shards.rows.schema import PRIMARY_KEY, TOMBSTONE, RowSchema
from headgate.shards.shard import TABLE_ID, TableHome
from headgate.steps import step


def current_home(home: TableHome) -> TableHome:
    """The table home with the base's current columns. Reads the base's manifest; writes nothing."""
    return replace(home, schema=current_schema(home))


def current_schema(home: TableHome) -> RowSchema:
    """The base's current columns. Raises InvalidInput if the base is no longer this table's."""
    return schema_of(home, open_dataset(home.store))


def schema_of(home: TableHome, dataset: Any) -> RowSchema:
    """The columns of the opened base. Raises InvalidInput if the base is no longer this table's."""
    check_own(home, dataset)
    return RowSchema.of(dataset.schema, field_ids(dataset))


def stream_schema(home: TableHome) -> RowSchema:
    """The base's current columns, for the driver of a stream. New columns survive a power cut from here on, as the rows
    that use them must (R21).

    Raises Fenced if another table was created in this place (R23), and otherwise as `current_schema` does.
    """
    dataset = open_dataset(home.store)
    named = dataset.config().get(TABLE_ID)
    if is_another_table(home.table_id, named):
        raise another_table(home, str(home.table_id), named)
    rows = schema_of(home, dataset)
    if rows != home.schema:
        settle_base(home.store)
    return rows


def another_table(home: TableHome, table_id: str, stored: str) -> Fenced:
    """The error for a stream whose table was dropped and re-created (R23)."""
    return Fenced(
        "The table was dropped and re-created; this stream wrote to the old table.",
        table=home.uri,
        table_id=table_id,
        stored_table_id=stored,
        advice="stop this query; start it with an empty checkpoint directory, so that the new table gets all rows "
        "from the topic",
    )


def plain_schema(home: TableHome) -> pa.Schema:
    """The base's schema without field ids."""
    return open_dataset(home.store).schema


def add_column(home: TableHome, column: pa.Field) -> None:
    """Add a column, null in all existing rows. Idempotent. Raises InvalidInput, Transient, Poisoned."""
    rows = current_schema(home)
    if is_added(rows, column):
        _finish(home)
        return
    check_added(rows, column)
    _change(
        home,
        {"change": "add", "name": column.name},
        lambda dataset: dataset.add_columns(column),
        [*rows.logical.names, column.name],
        # Rehearsed by Lance's own call: committing a numbered schema does not check names.
        lambda dataset: add_numbered(dataset, column, _highest(home, dataset)),
    )


def rename_column(home: TableHome, name: str, to: str, bound: Collection[str] = ()) -> None:
    """Rename a column; its values stay. `bound` are columns that rows are routed or indexed by. The same call again
    completes it, as long as it is the last change. Raises as above.
    """
    rows = current_schema(home)
    note = {"change": "rename", "name": name, "to": to}
    if name not in rows.logical.names and to in rows.logical.names and _is_last(home, note):
        _finish(home)
        return
    check_bound(rows, name, bound, "renamed")
    check_free(rows, to)
    _change(
        home,
        note,
        lambda dataset: dataset.alter_columns({"path": name, "name": to}),
        [to if one == name else one for one in rows.logical.names],
    )


def drop_column(home: TableHome, name: str, bound: Collection[str] = ()) -> None:
    """Drop a column and its values. `bound` are columns that rows are routed or indexed by. The same call again
    completes it, as long as it is the last change. Raises as above.
    """
    rows = current_schema(home)
    note = {"change": "drop", "name": name}
    if name not in rows.logical.names and _is_last(home, note):
        _finish(home)
        return
    check_bound(rows, name, bound, "dropped")
    _change(
        home,
        note,
        lambda dataset: dataset.drop_columns([name]),
        [one for one in rows.logical.names if one != name],
    )


def announce(home: TableHome) -> None:
    """Put a schema record into the log of every stream: steps 2 to 4 of a change (R22). THIS WRITES; it
    fences nobody.
    """
    step("streams")
    for stream in list_streams(home.records):
        CommitLog(home.records, stream, home.uri).put_schema_record()


# -- checks ----------------------------------------------------------------------------


def is_added(rows: RowSchema, column: Any) -> bool:
    """True if this very column exists: the call that added it may have died before it reached the streams."""
    if not isinstance(column, pa.Field) or column.name not in rows.logical.names or column.name in rows.primary_key:
        return False
    there = rows.logical.field(column.name)
    return bool(there.type == column.type and there.nullable and column.nullable)


def check_added(rows: RowSchema, column: pa.Field) -> None:
    """Raises InvalidInput for a column that cannot be added."""
    if not isinstance(column, pa.Field):
        raise InvalidInput("column must be a pyarrow Field.", advice="pass pa.field(name, type)")
    if column.name in rows.logical.names:
        there = rows.logical.field(column.name).type
        if there != column.type:
            raise InvalidInput(
                f"Column {column.name!r} has type {there} and cannot be changed to {column.type}: stored rows "
                "would become unreadable.",
                advice=f"add a column under another name, fill it from this one, drop {column.name!r}, and rename the "
                "new one to it; nothing was written",
            )
    check_free(rows, column.name)
    if not column.nullable or (column.metadata or {}).get(PRIMARY_KEY):
        raise InvalidInput(
            f"Column {column.name!r} is not nullable, but existing rows have no value for it.",
            advice="add it as nullable; nothing was written",
        )


def check_free(rows: RowSchema, name: str) -> None:
    """Raises InvalidInput if a column must not have this name."""
    if not name or name == TOMBSTONE or name.startswith("_row"):
        raise InvalidInput(f"Invalid column name {name!r}: the storage format uses such names.")
    if not name.isascii() and any("\ud800" <= char <= "\udfff" for char in name):
        raise InvalidInput(f"Invalid column name {name[:80]!a}: it is not valid Unicode; nothing was written.")
    if "\0" in name:
        # Lance accepts the rename, and then ends the process that reads it.
        raise InvalidInput(f"Invalid column name {name[:80]!r}: it contains a zero byte; nothing was written.")
    if name in rows.logical.names:
        raise InvalidInput(f"Column {name!r} exists already.", advice="choose another name; nothing was written")


def check_bound(rows: RowSchema, name: str, bound: Collection[str], what: str) -> None:
    """Raises InvalidInput if the column does not exist, if rows are keyed, routed or indexed by it, or if dropping it
    would leave no column.
    """
    if name not in rows.logical.names:
        raise InvalidInput(f"Column {name!r} not found; the table has {rows.logical.names}.")
    if name in rows.primary_key or name in bound:
        raise InvalidInput(
            f"Column {name!r} cannot be {what}: rows are keyed, routed or indexed by it.",
            advice="create a table with the columns you want and copy the rows; nothing was written",
        )
    if what == "dropped" and len(rows.logical.names) == 1:
        raise InvalidInput(f"Column {name!r} is the only column and cannot be dropped.")


def difference(then: RowSchema, now: RowSchema) -> str | None:
    """The changes as text; None if nothing changed."""
    old, new = dict(_numbered(then)), dict(_numbered(now))
    both = [(old[number], new[number]) for number in old.keys() & new.keys()]
    changes = [f"added {new[number].name!r}" for number in new.keys() - old.keys()]
    changes += [f"dropped {old[number].name!r}" for number in old.keys() - new.keys()]
    changes += [f"renamed {a.name!r} to {b.name!r}" for a, b in both if a.name != b.name]
    changes += [f"changed {b.name!r} from {a.type} to {b.type}" for a, b in both if a.type != b.type]
    return ", ".join(sorted(changes)) or None


def gained(then: RowSchema, now: RowSchema) -> bool:
    """True if a current column has values that were not written with the columns of `then`: it was added, renamed, or
    dropped and added again.
    """
    known = {(number, column.name, column.type) for number, column in _numbered(then)}
    return any((number, column.name, column.type) not in known for number, column in _numbered(now))


def _numbered(rows: RowSchema) -> list[tuple[int, pa.Field]]:
    return [(int((column.metadata or {})[b"lance:field_id"]), column) for column in rows.logical]


def _change(
    home: TableHome,
    note: Mapping[str, str],
    rehearsed: Callable[[Any], Any],
    names: Sequence[str],
    change: Callable[[Any], Any] | None = None,
) -> None:
    """Rehearse the change in memory first, because Lance accepts names that it cannot find again. `names` are the
    column names after it.

    After an error, check whether the change was made: a lost response and a rival's equal change look alike.
    """
    settle_base(home.store)
    rehearse_change(plain_schema(home), rehearsed, names)
    step("note")
    _write_note(home, note)
    step("change")
    try:
        (change or rehearsed)(open_dataset(home.store))
    except (OSError, ValueError, RuntimeError) as error:
        if open_dataset(home.store).schema.names != list(names):
            what = "Changing the base's columns failed."
            raise native_error(what, error, Transient, table=home.uri) from without_secrets(error)
    _finish(home)


def _finish(home: TableHome) -> None:
    step("sync")
    sync_base(home.store)
    announce(home)


# -- the column note in the base's configuration ----------------------------------------


def _write_note(home: TableHome, note: Mapping[str, str]) -> None:
    """Note the change that is about to be made, and the highest field id given so far. Raises Transient."""
    for _ in range(TRIES):
        dataset = open_dataset(home.store)
        known = {"table_id": str(home.table_id), "highest_id": _highest(home, dataset)}
        if write_notes(home.store, dataset, {COLUMNS: json.dumps({**known, **note})}):
            return
    raise Transient(f"Writing a note to the base failed {TRIES} times.", table=home.uri)


def _is_last(home: TableHome, note: Mapping[str, str]) -> bool:
    """True if this change was the last one that was begun, and in this table, not in one that it was cloned from."""
    found = _note(home, open_dataset(home.store))
    keys = ("table_id", "change", "name", "to")
    return {key: found.get(key) for key in keys} == {"table_id": str(home.table_id), "to": None, **note}


def _highest(home: TableHome, dataset: Any) -> int:
    """The highest field id that a column ever had, here or in a table that this one was cloned from."""
    return max(int(_note(home, dataset).get("highest_id", -1)), highest_field_id(dataset))


def _note(home: TableHome, dataset: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(dataset.config().get(COLUMNS, "{}")))
    except ValueError as error:
        raise Corrupt("The base's note of its last column change is invalid.", table=home.uri) from error
