"""headgate's notes in a base's configuration. Each version of the base carries them, so readers need nothing else.

pylance is imported when a function is called, never before (fork safety).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.lance.errors import native_error
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.secrets import without_secrets
from headgate.errors import Corrupt, Transient

STARTED = "headgate.compacting."
"""With a shard's id, the key of its note: the generation up to which deletes may be in the base before the rows."""

COLUMNS = "headgate.columns"
"""Key of the last change of columns: {"table_id", "highest_id", "change", "name", "to"}. A clone keeps it, since its
WAL entries carry the source's field ids."""

TRIES = 8
"""A try fails if another process wrote the same note meanwhile."""


def write_notes(store: ObjectStore, dataset: Any, notes: Mapping[str, str]) -> bool:
    """Set keys of the configuration. False if another process changed one since `dataset` was opened, or the store
    failed.

    Of two commits that change one key from the same version, Lance accepts exactly one. Raises StoreFull,
    PermissionDenied.
    """
    try:
        dataset.update_config(dict(notes))
    except (OSError, ValueError, RuntimeError) as error:
        config = open_dataset(store).config()
        if all(config.get(key) == text for key, text in notes.items()):
            return True
        failed = native_error("A note of the base could not be written", error, Transient, table=store.uri)
        if not isinstance(failed, Transient):
            raise failed from without_secrets(error)
        return False
    return True


def started_marks(dataset: Any) -> Mapping[UUID, int]:
    """Per shard the generation up to which deletes may be in this version: a reader must know those SSTables.

    Raises Corrupt.
    """
    try:
        return {
            UUID(key.removeprefix(STARTED)): int(text)
            for key, text in dataset.config().items()
            if key.startswith(STARTED)
        }
    except ValueError as error:
        raise Corrupt("The base's note about a running compaction is invalid.", uri=dataset.uri) from error


def note_started(store: ObjectStore, generations: Mapping[UUID, int]) -> None:
    """Note in every later version that it may contain deletes up to these generations. Raises Transient."""
    for _ in range(TRIES):
        dataset = open_dataset(store)
        known = started_marks(dataset)
        wanted = {shard: generation for shard, generation in generations.items() if known.get(shard, 0) < generation}
        notes = {f"{STARTED}{shard}": str(generation) for shard, generation in wanted.items()}
        if not notes or write_notes(store, dataset, notes):
            return
    raise Transient(f"Writing a note to the base failed {TRIES} times.", table=store.uri)
