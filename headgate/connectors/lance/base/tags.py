"""Holds versions of a Lance dataset by tags: Lance's own cleanup keeps a tagged version.

pylance is imported when a function is called, never before (fork safety).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headgate.connectors.lance.base.damage import settle_base
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.lance.base.tidy import version_times
from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.lance.errors import native_error
from headgate.connectors.objects import ObjectStore, without_secrets
from headgate.connectors.objects.deletion import delete_by
from headgate.connectors.objects.files import sync_path
from headgate.errors import NotFound, Transient


def hold_version(store: ObjectStore, tag: str, version: int, dataset: Any = None) -> None:
    """Tag a version, and make the tag and the version's files durable; idempotent. `dataset` is the opened base.

    Raises NotFound if the version is missing, DataLoss if it has lost files, Transient.
    """
    settle_base(store)
    dataset = dataset or open_dataset(store)
    try:
        dataset.tags.create(tag, version)
    except (ValueError, OSError) as error:
        if held_versions(store).get(tag) == version:
            return
        # Native raises ValueError both for a missing version and for a failing store: ask the store.
        if version not in version_times(store):
            raise NotFound(f"Version {version} of the base is missing.", table=store.uri) from without_secrets(error)
        what = f"Version {version} of the base was not tagged: Lance failed."
        raise native_error(what, error, Transient, table=store.uri, tag=tag) from without_secrets(error)
    sync_base(store, version)
    _sync(store, tag)


def release_version(store: ObjectStore, tag: str) -> None:
    """Remove a tag. A missing tag is not an error. Raises Transient."""
    try:
        delete_by(lambda: open_dataset(store).tags.delete(tag), store, tag, "tag")
    except (ValueError, OSError) as error:
        if tag in held_versions(store):
            what = "Removing a tag of the base failed."
            raise native_error(what, error, Transient, table=store.uri, tag=tag) from without_secrets(error)


def held_versions(store: ObjectStore, dataset: Any = None) -> Mapping[str, int]:
    """Every tag, with the version it holds. `dataset` is the opened base. Raises Transient."""
    try:
        return {name: int(tag["version"]) for name, tag in (dataset or open_dataset(store)).tags.list().items()}
    except (ValueError, OSError, RuntimeError) as error:
        raise Transient("Reading the tags of the base failed.", table=store.uri) from without_secrets(error)


def _sync(store: ObjectStore, tag: str) -> None:
    """Sync the tag's file, which Lance never does: a checkpoint that survives a power loss must not lose its tag."""
    folder, options = store.locate("_refs/tags")
    if options or not os.path.isdir(folder):
        return
    # Sync up to the dataset's folder: the `_refs` folder in it may be new.
    above = os.path.dirname(folder)
    if not sync_path(os.path.join(folder, f"{tag}.json")):
        raise NotFound(f"Tag {tag} of the base is missing.", table=store.uri)
    for path in (folder, above, os.path.dirname(above)):
        sync_path(path)
