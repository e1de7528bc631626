"""The index folders that versions of a base use, for garbage collection. Imports pylance only when called."""

from __future__ import annotations

from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.objects import ObjectStore


def indexes_in_use(store: ObjectStore) -> frozenset[str]:
    """The folders below `_indices/` that any version of the base uses. Raises DataLoss if a version cannot be read."""
    latest = open_dataset(store)
    used: set[str] = set()
    for version in latest.versions():
        dataset = open_dataset(store, version=version["version"])
        for index in dataset.describe_indices():
            used.update(str(segment.uuid) for segment in index.segments)
    return frozenset(used)
