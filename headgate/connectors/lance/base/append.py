"""Appends rows of SSTables to a base without a key exactly once, even if processes crash or a late one wakes up (R14).

On a base with a key, merge-insert sets a mark that guards against doing it twice; an append has none. So:

1. `intend` writes a note into the base's configuration: per shard, which generations this try would append, in which
   data files, and the version it was checked against.
2. `append` commits the files as a whole new list of fragments. Lance accepts it only if no other commit changed rows
   since the version that was checked. So at most one try for a generation lands.
3. `finish` marks the generation as contained in the base.

A version of the base alone tells readers what it contains (`appended_marks`): a try has landed if the version holds
one of its files, or if a version since the note carries the try's id (compaction may have rewritten the files). If
such a version can no longer be read, the answer is unknown: this raises Poisoned and never guesses.

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
"""The transaction property that holds the try's id."""

TRIES = 8
"""A try fails if another process changed the base meanwhile."""


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt to append the SSTables of a shard up to a generation."""

    id: str
    generation: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppendProgress:
    """What the base's configuration notes about one shard."""

    done: int = 0
    """All SSTables up to this generation are in the base."""
    since: int = 0
    """At this version of the base no try had landed."""
    tries: tuple[Try, ...] = ()
    """At most one of them ever lands."""


class BaseMoved(Transient):
    """Other SSTables were compacted into the base than the caller knows, or its columns changed: plan again."""

    next_step = "plan the compaction again; nothing was changed"

    def __init__(self, what: str = "The base has changed since the compaction was planned.", **fields: Any) -> None:
        super().__init__(what, **fields)


# -- what a version contains ---------------------------------------------------------


def appended_marks(dataset: Any, shards: Collection[UUID] | None = None) -> Mapping[UUID, int]:
    """Per given shard the highest generation that this version contains. Reads nothing unless a try is unfinished.

    (A clone carries the notes of its parent's shards, which do not concern its own.) Raises Poisoned if the answer is
    no longer known, Corrupt.
    """
    marks = {}
    for shard, progress in progress_of(dataset).items():
        if shards is None or shard in shards:
            found = landed(dataset, progress)
            marks[shard] = progress.done if found is None else found.generation
    return marks


def progress_of(dataset: Any) -> dict[UUID, AppendProgress]:
    """The notes in this version's configuration, per shard. Raises Corrupt."""
    return {
        UUID(key.removeprefix(PREFIX)): _parsed(key, text)
        for key, text in dataset.config().items()
        if key.startswith(PREFIX)
    }


def landed(dataset: Any, progress: AppendProgress) -> Try | None:
    """The try whose rows this version contains; None if no try has landed. Raises Poisoned."""
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
    """Write rows to data files that no version names yet. Returns each fragment as JSON. Raises Transient."""
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
    """The names of the fragments' data files."""
    return tuple(file["path"] for text in fragments for file in json.loads(text)["files"])


def intend(store: ObjectStore, above: Mapping[UUID, int], upto: Mapping[UUID, int], fragments: Sequence[str]) -> str:
    """Note a try to append, per shard, the generations from `above` (exclusive) to `upto`. Returns the try's id.

    Raises BaseMoved if the base's marks differ from `above`, Poisoned, Transient.
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
            # A stalled process's try may still land: its note stays until one try has landed.
            waiting = () if landed(dataset, before) else before.tries
            tries = (*waiting, Try(own, generation, files))
            noted[shard] = AppendProgress(above.get(shard, 0), dataset.version, tries)
        if _note(store, dataset, noted):
            return own
    raise _contended(store)


def append(store: ObjectStore, own: str, upto: Mapping[UUID, int], fragments: Sequence[str]) -> None:
    """Commit the files unless this try has landed already. Idempotent.

    Raises BaseMoved if another try landed or the columns changed since the files were written; Fenced if a successor
    has removed this try's note; Poisoned, Transient.
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
            # A conflict, a failing store or a lost response: the next look at the base shows which.
            continue
    raise _contended(store)


def finish(store: ObjectStore, upto: Mapping[UUID, int]) -> None:
    """Mark the generations as contained in the base, once they are. Idempotent. Raises Fenced, Transient."""
    for _ in range(TRIES):
        dataset = open_dataset(store)
        marks, progress = appended_marks(dataset, upto.keys()), progress_of(dataset)
        if any(marks.get(shard, 0) < generation for shard, generation in upto.items()):
            raise Fenced("Another compaction is working on these SSTables.", table=store.uri)
        open_ones = {shard: marks[shard] for shard in upto if progress.get(shard, AppendProgress()).tries}
        if not open_ones or _note(store, dataset, {shard: AppendProgress(mark) for shard, mark in open_ones.items()}):
            return
    raise _contended(store)


# -- helpers -----------------------------------------------------------------------------


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
