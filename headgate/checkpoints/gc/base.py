"""Cleanup of the base: few fragments and few versions.

Promises:
1. No row changes: fragments are rewritten as they are.
2. A version held by a tag or a checkpoint record stays, and so does one that was replaced less than the policy's time
   ago (R12): longer reads hold a checkpoint. While a checkpoint record is unreadable, no version is removed: it may
   hold any.
3. While an append is unfinished, no version is removed: they show its outcome (R14).
4. A crash leaves unreferenced files, which a later removal of versions finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from headgate.checkpoints.gc.candidates import store_time
from headgate.checkpoints.jobs.policy import BasePolicy, ListedVersion, old_versions, untouched_fragments
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore
from headgate.connectors.lance.base import tidy as base_tidy
from headgate.connectors.lance.base.append import progress_of
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.lance.base.tags import held_versions
from headgate.connectors.lance.base.tidy import MergePlan
from headgate.connectors.lance.datasets import open_dataset
from headgate.errors import Corrupt, InvalidInput
from headgate.shards.shard import TableHome
from headgate.steps import step

RunMerge: TypeAlias = Callable[[TableHome, MergePlan], list[str]]
"""Runs every task of a plan: in this process, or on executors."""


@dataclass(frozen=True)
class Tidied:
    fragments_before: int
    fragments: int
    versions_removed: int = 0
    bytes_removed: int = 0


def tidy_base(
    home: TableHome,
    policy: BasePolicy,
    run: RunMerge | None = None,
    *,
    now: datetime | None = None,
) -> Tidied:
    """Merge small fragments, then remove old versions, both by policy. `now` is the store's time if known.

    1. look at the fragments; if there are too few small ones, they stay.
    2. write the merged ones; nothing names them yet.
    3. commit them. If others changed the old ones meanwhile, the merge is abandoned until the next time: Transient.
    4. list the versions, then read which of them are held (R12).
    5. sync the base (R21), then remove the rest.
    """
    store = home.store
    step("fragments")
    before = base_tidy.fragment_sizes(store)
    untouched = untouched_fragments(before, policy)
    if untouched is not None:
        plan = base_tidy.plan_merge(store, untouched, policy.target_rows, policy.max_deleted)
        step("merge fragments")
        made = (run or run_here)(home, plan)
        step("commit fragments")
        if made:
            base_tidy.commit_merge(store, made)
    fragments = len(base_tidy.fragment_sizes(store))
    step("versions")
    gone = _old(home, policy, now)
    step("sync")
    sync_base(store)
    step("remove versions")
    nbytes = base_tidy.remove_versions(store, gone) if gone else 0
    return Tidied(len(before), fragments, len(gone), nbytes)


def run_here(home: TableHome, plan: MergePlan) -> list[str]:
    """Run the tasks in this process, one after the other."""
    return [base_tidy.run_merge(home.store, plan, number) for number in range(len(plan.tasks))]


def _old(home: TableHome, policy: BasePolicy, now: datetime | None) -> list[int]:
    times = base_tidy.version_times(home.store)
    if len(times) < 2 or _is_unfinished(home):
        return []
    now = now or store_time(home)
    listed = [ListedVersion(version, modified) for version, modified in times.items()]
    old = old_versions(listed, held_versions(home.store).values(), now - policy.keep_versions)
    recorded = _recorded(home) if old else frozenset()
    return [] if recorded is None else [version for version in old if version not in recorded]


def _recorded(home: TableHome) -> frozenset[int] | None:
    """Base versions that checkpoint records name, even if the take died before its tag, or the checkpoint expired and
    waits for a collection; None if a record is unreadable.
    """
    try:
        stored = CheckpointStore(home.records, home.uri).list()
    except (Corrupt, InvalidInput):
        return None
    return frozenset(one.checkpoint.base_version for one in stored)


def _is_unfinished(home: TableHome) -> bool:
    """True if an append of a shard of this table is unfinished; notes of other shards came with a clone's base."""
    own = set(home.store.list_folders("_mem_wal/"))
    noted = progress_of(open_dataset(home.store))
    return any(progress.tries and str(shard) in own for shard, progress in noted.items())
