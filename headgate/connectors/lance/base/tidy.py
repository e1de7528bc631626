"""Merges small fragments of a base and removes old versions. Lance does both; the caller says which.

pylance is imported when a function is called, never before (fork safety).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from headgate.connectors.lance.base.files import version_of
from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.lance.errors import native_error
from headgate.connectors.objects import ObjectStore, without_secrets
from headgate.connectors.objects.deletion import delete_by
from headgate.errors import Transient


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Tasks that rewrite fragments of one version, as JSON. Picklable."""

    version: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FragmentSize:
    """The rows of one fragment."""

    id: int
    rows: int
    deleted: int = 0
    """Deleted ones among `rows`."""


def fragment_sizes(store: ObjectStore) -> list[FragmentSize]:
    """Every fragment of the base as it is now."""
    return [
        FragmentSize(one.fragment_id, one.physical_rows, one.num_deletions)
        for one in open_dataset(store).get_fragments()
    ]


def plan_merge(store: ObjectStore, untouched: Iterable[int], target_rows: int, max_deleted: float) -> MergePlan:
    """Lance's plan for rewriting fragments; the `untouched` ones are excluded."""
    from lance.optimize import Compaction

    dataset = open_dataset(store)
    options: Any = {
        "target_rows_per_fragment": target_rows,
        "materialize_deletions_threshold": max_deleted,
        "excluded_fragment_ids": sorted(untouched),
    }
    plan = Compaction.plan(dataset, options)
    return MergePlan(plan.read_version, tuple(task.json() for task in plan.tasks))  # type: ignore[attr-defined]


def run_merge(store: ObjectStore, plan: MergePlan, number: int) -> str:
    """Write one task's fragments; no version names them yet. Returns the result as JSON. Raises Transient."""
    from lance.optimize import CompactionTask

    try:
        task = CompactionTask.from_json(plan.tasks[number])  # type: ignore[attr-defined]
        made = task.execute(open_dataset(store, version=plan.version))
        return str(made.json())
    except (OSError, ValueError, RuntimeError) as error:
        what = "Merging fragments of the base failed."
        raise native_error(what, error, Transient, store=store.uri) from without_secrets(error)


def commit_merge(store: ObjectStore, made: Sequence[str]) -> None:
    """Commit the merged fragments. Raises Transient if another process changed the old ones meanwhile."""
    from lance.optimize import Compaction, RewriteResult

    try:
        Compaction.commit(open_dataset(store), [RewriteResult.from_json(text) for text in made])  # type: ignore[attr-defined]
    except (OSError, ValueError, RuntimeError) as error:
        what = "Committing merged fragments to the base failed."
        raise native_error(what, error, Transient, store=store.uri) from without_secrets(error)


def version_times(store: ObjectStore) -> Mapping[int, datetime]:
    """Every version of the base, with the time at which the store wrote its manifest."""
    found = ((version_of(info.key.removeprefix("_versions/")), info.modified) for info in store.list("_versions/"))
    return {version: modified for version, modified in found if version is not None}


def remove_versions(store: ObjectStore, versions: Sequence[int]) -> int:
    """Remove versions and the files that no other version uses. Tagged versions are never removed. Returns the bytes.

    Raises Transient.
    """
    try:
        dataset = open_dataset(store)
        remove = partial(dataset.cleanup_old_versions, versions=list(versions), error_if_tagged_old_versions=False)
        return int(delete_by(remove, store, f"versions {list(versions)}", "base version").bytes_removed)
    except (OSError, ValueError, RuntimeError) as error:
        what = "Removing old versions of the base failed."
        raise native_error(what, error, Transient, store=store.uri) from without_secrets(error)
