"""The kinds of objects that headgate deletes from a store, the rule of each, and the only code that deletes.

Promises:
1. Only objects of the kinds listed here are deleted. Nothing else in the package calls a store's `delete`.
2. Deleting is idempotent: a missing object is not an error.

This module checks no rule: the caller must have applied it. A dry run does not call this module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from headgate import parallel
from headgate.connectors.objects.port import ObjectStore
from headgate.steps import step

T = TypeVar("T")

Kind: TypeAlias = Literal[
    "wal entry",
    "sstable",
    "manifest",
    "commit record",
    "fold",
    "checkpoint",
    "consumer",
    "forward",
    "tag",
    "base version",
    "index",
    "outcome",
    "staging",
    "synced mark",
    "clone",
    "probe",
    "stray",
    "temporary",
]


@dataclass(frozen=True, slots=True)
class Rule:
    """When objects of a kind may be deleted, and the modules that may delete them."""

    why: str
    callers: tuple[str, ...]


RULES: Mapping[Kind, Rule] = {
    "wal entry": Rule(
        "SSTables cover it for every live manifest and pin, and every consumer has read it (R15). Never a "
        "barrier or the tip (R5); no entry while a named SSTable or a file of the base is missing (R20): "
        "gc.rules.collectable_wal.",
        ("checkpoints.gc.shards",),
    ),
    "sstable": Rule(
        "No live manifest and no pin names it, and no flush can commit it any more (R20): "
        "gc.rules.collectable_sstables.",
        ("checkpoints.gc.shards",),
    ),
    "manifest": Rule(
        "An oldest-first prefix that nobody can hold, after native's hint was written (R7); those that claim "
        "an epoch stay (R20): gc.rules.collectable_manifests, gc.rules.without_claims.",
        ("checkpoints.gc.shards",),
    ),
    "commit record": Rule(
        "A fold covers it, every consumer has read it (R15), and it is archived if the stream has an archive. "
        "Only records of batches, never the last of these or the tip (R5, R22): "
        "log.decisions.collectable_records and last_batch.",
        ("checkpoints.gc.table", "checkpoints.log.fold"),
    ),
    "fold": Rule(
        "A later fold covers it: `collectable_records` of log.decisions.",
        ("checkpoints.gc.table", "checkpoints.log.fold"),
    ),
    "checkpoint": Rule(
        "It expired, was dropped, or was never completed. Deleted by its id, never by name alone (R20).",
        ("checkpoints.gc.table", "checkpoints.snapshots.checkpoint"),
    ),
    "consumer": Rule(
        "The consumer has a newer pin. The newest stays even if expired: its number would be used again (R20).",
        ("checkpoints.gc.table", "checkpoints.log.pins"),
    ),
    "forward": Rule(
        "A newer record of the same forwarding is there, with all that it says.",
        ("streaming.forward",),
    ),
    "tag": Rule(
        "No checkpoint and no clone holds its version of the base any more: the record is deleted first.",
        ("checkpoints.gc.table", "connectors.lance.base.tags"),
    ),
    "base version": Rule(
        "No tag and no checkpoint names it, a later one replaced it long ago (R12), no append is unfinished (R14): "
        "jobs.policy.old_versions. Lance deletes it, with the files that no other version uses.",
        ("connectors.lance.base.tidy",),
    ),
    "index": Rule(
        "No version of the base uses the segment, and its maker can no longer commit it (R20). For a segment "
        "in use: the staged files and slots of its build.",
        ("checkpoints.gc.table",),
    ),
    "outcome": Rule(
        "Its maker gave the segment up and will never commit it.",
        ("search.build.commit",),
    ),
    "staging": Rule(
        "Staged and stray files of an index build, once the segment has a valid marker or is committed: nobody "
        "reads them any more, and they block deep clones.",
        ("connectors.lance.base.clone", "search.finalize.finalize"),
    ),
    "synced mark": Rule(
        "A higher version of the base is marked (R21).",
        ("connectors.lance.base.synced",),
    ),
    "clone": Rule(
        "All files of a clone that its maker can no longer complete (R20), its intent and mark last; or only "
        "the mark, if the maker completed it.",
        ("checkpoints.clone.build", "checkpoints.clone.intent"),
    ),
    "probe": Rule(
        "A probe with a random name, deleted by the process that put it.",
        ("checkpoints.gc.candidates", "doctor.store", "streaming.running"),
    ),
    "stray": Rule(
        "An old object among entries or manifests whose name is not one of theirs.",
        ("checkpoints.gc.shards",),
    ),
    "temporary": Rule(
        "The temporary file of a put that was interrupted long ago.",
        ("checkpoints.gc.table",),
    ),
}

_log = logging.getLogger(__name__)


def delete(store: ObjectStore, key: str, kind: Kind) -> None:
    """Delete one object. The delete is not synced: a power cut may bring the object back. Raises the store's errors."""
    verb = store.delete_temporary if kind == "temporary" else store.delete
    delete_by(partial(verb, key), store, key, kind)


def delete_all(store: ObjectStore, keys: Iterable[str], kind: Kind) -> None:
    """Delete objects in parallel, in no order. Raises the first error after all were tried."""
    parallel.each("delete", lambda key: delete(store, key, kind), keys)


def delete_by(call: Callable[[], T], store: ObjectStore, what: str, kind: Kind) -> T:
    """Delete by a call, usually of Lance's, which chooses the objects itself."""
    step(f"delete {kind}")
    done = call()
    _log.debug("deleted %s %s of %s", kind, what, store.uri)
    return done
