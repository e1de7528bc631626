"""Building a clone from the copied files: manifests, barriers, logs, the base, and the flip; or its removal.

Everything follows from the intent and the checkpoint, so every step can be repeated, even by two callers. Files at the
destination that do not follow from them are refused, never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from headgate import parallel
from headgate.checkpoints.clone.copy import put_barrier, tail_epoch
from headgate.checkpoints.clone.intent import (
    KEY,
    CloneIntent,
    forget_given_up,
    put_given_up,
    read_intent,
)
from headgate.checkpoints.clone.mapping import ShardPlan, cloned_fold, cloned_manifest, cloned_open
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.connectors.lance import dataset as lance_connector
from headgate.connectors.lance.base import clone as lance_clone
from headgate.connectors.lance.base.files import FOLDERS
from headgate.connectors.lance.base.notes import COLUMNS
from headgate.connectors.lance.base.tags import held_versions, hold_version
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.deletion import delete, delete_all
from headgate.errors import AlreadyExists, InvalidInput
from headgate.shards import names
from headgate.shards.manifest.model import Manifest, encode_manifest
from headgate.shards.outcomes import wins
from headgate.shards.shard import Shard, TableHome
from headgate.steps import step

NOTES = "headgate."
"""Prefix of headgate's keys in the base's configuration."""


@dataclass(frozen=True)
class CloneTarget:
    """Destination of the clone, and how it becomes a table."""

    store: ObjectStore
    wal_store: ObjectStore
    """The store of the WALs; the same object as `store` if the clone has no separate WAL store."""
    deep: bool
    id_key: str
    """Key in the base's configuration that holds the table id."""
    record: Callable[[UUID], tuple[str, bytes]]
    """Given the table id, returns the name and the bytes of the table record."""

    @property
    def wal_uri(self) -> str | None:
        """URI of the separate WAL store, None without one."""
        return None if self.wal_store is self.store else self.wal_store.uri


def named(target: CloneTarget) -> str | None:
    """The table id in the base at the destination; "" if the base has none, None if there is no base."""
    base = lance_connector.look(*target.store.locate())
    return None if base is None else base.config.get(target.id_key, "")


def make_shards(home: TableHome, checkpoint: TableCheckpoint, plans: Sequence[ShardPlan], intent: CloneIntent) -> None:
    """Steps 5 and 6 of `clone_table`. `home` is the clone's. Raises InvalidInput if a shard or log belongs to another
    table.
    """
    epochs = parallel.each("clone", partial(tail_epoch, home), plans)
    manifests = [cloned_manifest(plan, epoch, intent.table_id) for plan, epoch in zip(plans, epochs, strict=True)]
    parallel.each("clone", partial(_put_manifest, home, intent), manifests)
    step("shard manifests")
    parallel.each("clone", partial(put_barrier, home), plans, [manifest.epoch for manifest in manifests])
    step("barriers")
    by_old = {plan.pinned.shard_id: plan for plan in plans}
    by_new = {manifest.shard_id: manifest for manifest in manifests}
    for stream, fold in checkpoint.streams.items():
        log = CommitLog(home.records, stream, home.uri)
        opened = cloned_open(fold, intent.table_id, by_old, by_new)
        log.begin(cloned_fold(fold, checkpoint, intent.table_id, by_old), opened)
        if log.read().head.opened != opened:
            raise _of_another_instant(home.uri, intent)
    step("logs")


def _put_manifest(home: TableHome, intent: CloneIntent, manifest: Manifest) -> None:
    """Does not write native's hint: native works without it, and this call may run late."""
    shard = Shard(home, manifest.shard_id)
    with suppress(AlreadyExists):
        key, data = names.manifest_key(shard.id, manifest.version), encode_manifest(manifest)
        home.store.put_if_absent(key, data)
    if shard.manifests.latest() != manifest:
        raise _of_another_instant(home.uri, intent)


def _of_another_instant(target: str, intent: CloneIntent) -> InvalidInput:
    return InvalidInput(
        f"The unfinished clone at {target} was started from an older state of its source, whose checkpoint was "
        "dropped.",
        source=intent.source_uri,
        checkpoint=intent.pin,
        advice="delete the files at the target and the checkpoint, and clone again",
    )


def make_base(home: TableHome, target: CloneTarget, checkpoint: TableCheckpoint, intent: CloneIntent) -> None:
    """Step 7 of `clone_table`. `home` is the source's. Raises InvalidInput if the base there belongs to another
    table.
    """
    if not intent.deep:
        if held_versions(home.store).get(intent.tag, checkpoint.base_version) != checkpoint.base_version:
            raise _of_another_instant(target.store.uri, intent)
        hold_version(home.store, intent.tag, checkpoint.base_version)
    step("tagged")
    lance_clone.ensure_clone(home.store, target.store, checkpoint.base_version, deep=intent.deep)
    base = lance_connector.look(*target.store.locate())
    begun = base is not None and base.config.get(target.id_key) == str(intent.source_id)
    if base is None or (begun and base.version != checkpoint.base_version):
        raise _of_another_instant(target.store.uri, intent)
    step("base")
    key, data = target.record(intent.table_id)
    with suppress(AlreadyExists):
        target.store.put_if_absent(key, data)
    step("recorded")


def flip(target: CloneTarget, intent: CloneIntent) -> None:
    """Step 8 of `clone_table`. Raises InvalidInput if the intent or the base has changed, or another caller has
    abandoned the clone: either completing or removing it continues (R20).

    The same commit removes notes on the source's own shards: they refer to base versions that the clone does not have.
    """
    uri, options = target.store.locate()
    stored, base = read_intent(target.store), lance_connector.look(uri, options)
    kept = (target.id_key, COLUMNS)
    notes = () if base is None else [key for key in base.config if key.startswith(NOTES) and key not in kept]
    own = stored is not None and stored.table_id == intent.table_id
    source_id, table_id = str(intent.source_id), str(intent.table_id)
    if (
        not own
        or not wins(target.store, intent.outcome, "maker")
        or not lance_connector.swap_config(uri, target.id_key, source_id, table_id, options or None, forget=notes)
    ):
        raise InvalidInput(
            f"Another clone or table was created at {target.store.uri} meanwhile.",
            table_id=table_id,
            advice="choose another URI, or delete its files and clone again",
        )


def remove(target: CloneTarget, intent: CloneIntent, shard_ids: Iterable[UUID], release: Callable[[], None]) -> None:
    """Remove a clone that cannot be completed. Its outcome stays:

    1. mark the clone as abandoned, with the shards that it may have.
    2. take its outcome: from then on no sleeping process can complete it (R20). If its maker already has the outcome,
       remove the mark again.
    3. delete everything but intent and mark, then `release` what the source holds for it.
    4. delete the intent, then the mark.

    A crash anywhere leaves the mark; the next call at this destination does the rest.
    """
    if named(target) == str(intent.table_id):
        return  # another caller has completed it
    shard_ids = put_given_up(target.store, intent, shard_ids)
    step("given up")
    if not wins(target.store, intent.outcome, "collector"):
        forget_given_up(target.store)
        return  # another caller completes the clone, or has completed it
    if not _is_intended(target, intent):
        return  # another caller has removed it; the destination may hold another clone by now
    shards = [names.shard_folder(shard_id) + "/" for shard_id in shard_ids]
    own = [f"_headgate/{one}/" for one in (intent.table_id, intent.source_id)] + [f"{folder}/" for folder in FOLDERS]
    delete_all(target.store, _below(target.store, [*own, *shards]), "clone")
    if target.wal_store is not target.store:
        delete_all(target.wal_store, _below(target.wal_store, shards), "clone")
    step("removed")
    release()
    step("let go")
    if not _is_intended(target, intent):
        return
    delete(target.store, KEY, "clone")
    step("forgotten")
    forget_given_up(target.store)


def _is_intended(target: CloneTarget, intent: CloneIntent) -> bool:
    stored = read_intent(target.store)
    return stored is not None and stored.table_id == intent.table_id


def _below(store: ObjectStore, folders: Iterable[str]) -> list[str]:
    return [info.key for folder in folders for info in store.list(folder)]
