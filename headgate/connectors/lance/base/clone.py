"""Clones a Lance dataset at one version with native Lance. Imports pylance only when called (fork safety).

Promises:
1. A clone is complete or absent: its one manifest is put last. A dataset that is there already is kept.
2. On local disk the clone is synced when the call returns; Lance itself never syncs.

The clone keeps schema, configuration, indexes, MemWAL and the version number, but not tags and older versions (seen
with pylance 14.0.2). A shallow clone reads the source's data files for as long as it exists.

A deep clone with that pylance fails on files that an index build left in `staging/`: it looks one folder above.
"""

from __future__ import annotations

from typing import Any

from headgate.connectors.lance.base.files import has_versions
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.lance.errors import native_error
from headgate.connectors.objects import ObjectStore, without_secrets
from headgate.connectors.objects.deletion import delete_all
from headgate.errors import InvalidInput, PermissionDenied, StoreError


def ensure_clone(source: ObjectStore, target: ObjectStore, version: int, *, deep: bool) -> None:
    """Clone one version of `source` to `target`, unless `target` has a dataset already.

    The caller must check which dataset that is. If a deep clone fails, this deletes leftovers in the folders of the
    source's indexes and tries again. Raises DataLoss if the version is missing, StoreError.
    """
    dataset = open_dataset(source, version=version)
    uri, options = target.locate()
    make = dataset.deep_clone if deep else dataset.shallow_clone

    def failure() -> Exception | None:
        """Try once. Returns the error, or None if the dataset exists nevertheless."""
        try:
            make(uri, version, storage_options=options)
        except (OSError, ValueError, RuntimeError) as error:
            return None if has_versions(target) else error
        return None

    failed = failure()
    if failed is not None and deep and _without_leftovers(source, dataset):
        failed = failure()
    if failed is not None:
        what = f"Cloning version {version} of the base failed."
        raise native_error(what, failed, StoreError, source=source.uri, target=target.uri) from without_secrets(failed)
    sync_base(target)


def _without_leftovers(source: ObjectStore, dataset: Any) -> bool:
    """Delete files that builds left in folders inside committed indexes. True if there were any."""
    segments = [str(segment.uuid) for index in dataset.describe_indices() for segment in index.segments]
    folders = [
        f"_indices/{segment}/{name}" for segment in segments for name in source.list_folders(f"_indices/{segment}/")
    ]
    left = [info.key for folder in folders for info in source.list(f"{folder}/")]
    try:
        delete_all(source, left, "staging")
    except PermissionDenied as error:
        raise PermissionDenied(
            "A deep clone fails while files of an interrupted index build are left, and this user may not delete them.",
            source=source.uri,
            key=left[0],
            advice="run `headgate gc --apply` on the source, or clone with permission to delete there",
        ) from error
    return bool(left)


def check_shallow(source: ObjectStore, target: ObjectStore) -> None:
    """Raises InvalidInput unless both stores are on the same disk or in the same bucket.

    From one bucket to another pylance 14.0.2 writes the clone's manifest into the source's bucket.
    """
    if _place(source) != _place(target):
        raise InvalidInput(
            "A shallow clone shares the source's files, so both must be on the same disk or in the same bucket.",
            source=source.uri,
            target=target.uri,
            advice="make a deep clone (--deep); nothing was written",
        )


def _place(store: ObjectStore) -> str:
    """The bucket; empty for the local file system."""
    scheme, separator, rest = store.uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else ""
