"""Appending rows of SSTables to a base without a key exactly once, whoever dies or comes late (R14).

A base with a key has native's own guard, the mark that merge-insert sets; an append has none. So:

1. `intend` notes in the base's configuration, per shard, which generations a try would append, in which data files,
   and the version it was checked against.
2. `append` commits the files as a whole new list of fragments, which Lance lets through only if no other change of
   rows came since the version that was checked. So of all tries for a generation one lands at most.
3. `finish` notes the generation as taken in.

Whoever reads a version of the base sees by it alone what it has taken in (`appended_marks`): a try has landed where
the version holds one of its files, or where a version since the note carries the try's id (someone may have rewritten
the files). A version that can no longer be read means that it is unknown: Poisoned, never a guess.

pylance is imported when a function is called, never before (fork safety).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

import pyarrow as pa

from headgate.connectors.lance.base.manifest import max_fragment_id
from headgate.connectors.lance.base.notes import write_notes
from headgate.connectors.lance.datasets import field_ids, open_dataset
from headgate.connectors.lance.errors import native_error
from headgate.connectors.objects import ObjectStore, without_secrets
from headgate.errors import Corrupt, Fenced, Poisoned, StoreError, Transient

PREFIX = "headgate.appended."
"""With the shard's id, the base's configuration key for its progress."""

TRY_ID = "headgate.append_id"
"""The property of the transaction that appends."""

TRIES = 8
"""Each lost try means that somebody else changed the base in between; more would be a war."""


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt to append the SSTables of a shard up to a generation."""

    id: str
    generation: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppendProgress:
    """What the base says of one shard."""

    done: int = 0
    """The generation up to which everything is in the base."""
    since: int = 0
    """No try had landed at this version of the base."""
    tries: tuple[Try, ...] = ()
    """At most one of them ever lands."""


class BaseMoved(Transient):
    """The base has taken in other SSTables than the caller knows, or has other columns: plan again."""

    next_step = "plan the compaction again; nothing was changed"

    def __init__(self, what: str = "The base has changed since the compaction was planned.", **fields: Any) -> None:
        super().__init__(what, **fields)


# -- what a version has taken in -----------------------------------------------------


def appended_marks(dataset: Any, shards: Collection[UUID] | None = None) -> Mapping[UUID, int]:
    """Per shard (of those given) the highest generation that this version has taken in. Reads nothing unless a try is
    unfinished. (A clone carries the notes of its parent's shards, which say nothing of its own.)

    Raises Poisoned if it is no longer known, Corrupt.
    """
    marks = {}
    for shard, progress in progress_of(dataset).items():
        if shards is None or shard in shards:
            found = landed(dataset, progress)
            marks[shard] = progress.done if found is None else found.generation
    return marks


def progress_of(dataset: Any) -> dict[UUID, AppendProgress]:
    """What this version notes, per shard. Raises Corrupt."""
    return {
        UUID(key.removeprefix(PREFIX)): _parsed(key, text)
        for key, text in dataset.config().items()
        if key.startswith(PREFIX)
    }


def landed(dataset: Any, progress: AppendProgress) -> Try | None:
    """The try that this version contains; None where none has landed yet. Raises Poisoned."""
    if not progress.tries:
        return None
    by_file = {file: one for one in progress.tries for file in one.files}
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            if file.path in by_file:
                return by_file[file.path]
    by_id = {one.id: one for one in progress.tries}
    for version in range(progress.since + 1, dataset.version + 1):
        found = by_id.get(_properties(dataset, version).get(TRY_ID, ""))
        if found is not None:
            return found
    return None


# -- appending -------------------------------------------------------------------------


def write_fragments(dataset: Any, store: ObjectStore, batches: Iterable[pa.RecordBatch]) -> tuple[str, ...]:
    """Rows as data files of the base that nothing names yet; each fragment as JSON. Raises Transient."""
    from lance.fragment import write_fragments as write

    options = store.locate()[1]
    reader = pa.RecordBatchReader.from_batches(dataset.schema, iter(batches))
    try:
        made = write(
            reader,
            dataset,
            mode="append",
            data_storage_version=dataset.data_storage_version,
            storage_options=options or None,
        )
    except (OSError, ValueError, RuntimeError) as error:
        what = "Writing new fragments for the base failed."
        raise native_error(what, error, Transient, store=store.uri) from without_secrets(error)
    return tuple(json.dumps(fragment.to_json()) for fragment in made if fragment.physical_rows)


def data_files(fragments: Sequence[str]) -> tuple[str, ...]:
    """The names of their data files."""
    return tuple(file["path"] for text in fragments for file in json.loads(text)["files"])


def intend(store: ObjectStore, above: Mapping[UUID, int], upto: Mapping[UUID, int], fragments: Sequence[str]) -> str:
    """Note a try to append, per shard, the generations from `above` (not included) to `upto`. The try's id.

    Raises BaseMoved if the base has taken in something else than `above`, Poisoned, Transient.
    """
    own = uuid.uuid4().hex
    files = data_files(fragments)
    for _ in range(TRIES):
        dataset = open_dataset(store)
        progress = progress_of(dataset)
        marks = appended_marks(dataset, above.keys())
        if any(marks.get(shard, 0) != mark for shard, mark in above.items()):
            raise BaseMoved(table=store.uri)
        noted = {}
        for shard, generation in upto.items():
            before = progress.get(shard, AppendProgress())
            # A try of somebody who stalls may still land: it stays until one has.
            waiting = () if landed(dataset, before) else before.tries
            tries = (*waiting, Try(own, generation, files))
            noted[shard] = AppendProgress(above.get(shard, 0), dataset.version, tries)
        if _note(store, dataset, noted):
            return own
    raise _contended(store)


def append(store: ObjectStore, own: str, upto: Mapping[UUID, int], fragments: Sequence[str]) -> None:
    """Commit the files, unless this or another try has landed. Idempotent.

    Raises BaseMoved if another try landed, or the columns changed since the files were written; Fenced if a successor
    no longer knows this try; Poisoned, Transient.
    """
    import lance

    for _ in range(TRIES):
        dataset = open_dataset(store)
        progress = {shard: progress_of(dataset).get(shard, AppendProgress()) for shard in upto}
        found = {shard: landed(dataset, one) for shard, one in progress.items()}
        if all(one is not None and one.id == own for one in found.values()):
            return
        taken_in = any(progress[shard].done >= generation for shard, generation in upto.items())
        if taken_in or any(one is not None for one in found.values()):
            raise BaseMoved(table=store.uri)
        if any(all(one.id != own for one in there.tries) for there in progress.values()):
            raise Fenced("Another process has already compacted these SSTables.", table=store.uri)
        made = [lance.FragmentMetadata.from_json(text) for text in fragments]
        if not {number for one in made for file in one.files for number in file.fields} <= {-2, *field_ids(dataset)}:
            raise BaseMoved(table=store.uri)
        first = max_fragment_id(dataset) + 1
        numbered = [replace(one, id=number) for number, one in enumerate(made, first)]
        merge = lance.LanceOperation.Merge([*_fragments(dataset), *numbered], dataset.lance_schema)
        change = lance.Transaction(
            read_version=dataset.version,
            operation=merge,
            uuid=str(uuid.uuid4()),
            transaction_properties={TRY_ID: own},
        )
        try:
            lance.LanceDataset.commit(dataset, change, max_retries=0)
        except (OSError, ValueError, RuntimeError):
            # A conflict, a failing store or a lost response: the base tells.
            continue
    raise _contended(store)


def finish(store: ObjectStore, upto: Mapping[UUID, int]) -> None:
    """Note the generations as taken in, once they are. Idempotent. Raises Fenced, Transient."""
    for _ in range(TRIES):
        dataset = open_dataset(store)
        marks, progress = appended_marks(dataset, upto.keys()), progress_of(dataset)
        if any(marks.get(shard, 0) < generation for shard, generation in upto.items()):
            raise Fenced("Another compaction is working on these SSTables.", table=store.uri)
        open_ones = {shard: marks[shard] for shard in upto if progress.get(shard, AppendProgress()).tries}
        if not open_ones or _note(store, dataset, {shard: AppendProgress(mark) for shard, mark in open_ones.items()}):
            return
    raise _contended(store)


# -- what the above is made of -----------------------------------------------------------


def _note(store: ObjectStore, dataset: Any, noted: Mapping[UUID, AppendProgress]) -> bool:
    notes = {f"{PREFIX}{shard}": json.dumps(asdict(one), separators=(",", ":")) for shard, one in noted.items()}
    return write_notes(store, dataset, notes)


def _parsed(key: str, text: str) -> AppendProgress:
    try:
        fields = json.loads(text)
        tries = (Try(str(one["id"]), int(one["generation"]), tuple(one["files"])) for one in fields["tries"])
        return AppendProgress(int(fields["done"]), int(fields["since"]), tuple(tries))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt("The base's note about the last compaction is invalid.", key=key) from error


def _properties(dataset: Any, version: int) -> Mapping[str, str]:
    try:
        change = dataset.read_transaction(version)
    except (OSError, ValueError) as error:
        raise _unknown(dataset, version) from without_secrets(error)
    if change is None:
        raise _unknown(dataset, version)
    return dict(change.transaction_properties or {})


def _fragments(dataset: Any) -> list[Any]:
    return [fragment.metadata for fragment in dataset.get_fragments()]


def _unknown(dataset: Any, version: int) -> Poisoned:
    return Poisoned(
        "It is unknown whether some SSTables were merged: a version of the base is missing.",
        base_version=dataset.version,
        missing_version=version,
        advice="restore that version of the base; run `headgate compact` before you clean up versions by hand",
    )


def _contended(store: ObjectStore) -> StoreError:
    return Transient(f"Committing to the base failed {TRIES} times.", table=store.uri)
