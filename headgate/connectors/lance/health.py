"""Checks whether a Lance dataset can be read; returns faults instead of raising them.

Lance stores no checksums: this finds a missing or truncated file, a page that cannot be decoded and a wrong row count,
but not a flipped value. Imports pylance only when called (fork safety).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.lance.errors import is_away
from headgate.connectors.objects import ObjectStore, without_secrets
from headgate.errors import HeadgateError, Transient

BATCH_ROWS = 8192
"""Rows per batch: memory is bounded by a few batches."""


@dataclass(frozen=True, slots=True)
class DatasetHealth:
    """The result of a check."""

    fault: str | None
    """Why the dataset cannot be read, in Lance's words; None if it can."""
    physical_rows: int = 0
    """Rows in its files, deleted ones included."""
    missing_indexes: tuple[str, ...] = ()
    """Indexes whose files are missing."""


def look_over(store: ObjectStore, key: str = "", version: int | None = None) -> DatasetHealth:
    """Open the dataset, and let Lance check every file's footer and every deletion file. Reads no rows.

    Raises Transient if the store does not answer.
    """
    return _guarded(store, key, version, lambda dataset: dataset.validate())


def read_through(store: ObjectStore, key: str = "") -> DatasetHealth:
    """Like `look_over`, and decode every row."""

    def read(dataset: Any) -> None:
        dataset.validate()
        for _ in dataset.scanner(batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1).to_batches():
            pass

    return _guarded(store, key, None, read)


def _guarded(store: ObjectStore, key: str, version: int | None, read: Any) -> DatasetHealth:
    try:
        dataset = open_dataset(store, key, version)
        read(dataset)
        rows = sum(fragment.physical_rows for fragment in dataset.get_fragments())
        named = dict(_own_indexes(dataset))
    except Transient:
        raise
    except HeadgateError as error:
        return DatasetHealth(_reason(error.__cause__) if error.__cause__ is not None else error.what)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of native code is not an Exception
        if is_away(error):
            raise Transient("Reading a Lance dataset failed.", store=store.uri, key=key or None) from without_secrets(
                error
            )
        return DatasetHealth(_reason(error))
    missing = tuple(
        name for name, folders in named.items() if any(not _has_files(store, key, folder) for folder in folders)
    )
    return DatasetHealth(None, rows, missing)


def _own_indexes(dataset: Any) -> Iterator[tuple[str, list[str]]]:
    """Names and folders of indexes. Lance's system indexes have no files, and a shallow clone's may be elsewhere."""
    for index in dataset.describe_indices():
        folders = [str(segment.uuid) for segment in index.segments if segment.base_id is None]
        if not index.name.startswith("__lance"):
            yield index.name, folders


def _has_files(store: ObjectStore, key: str, index: str) -> bool:
    prefix = f"{key}/_indices/{index}/" if key else f"_indices/{index}/"
    return store.any_below(prefix)


def _reason(error: BaseException) -> str:
    """Native's text without its source locations, which follow commas."""
    parts = [part for part in str(error).strip().split(", ") if ".rs:" not in part]
    text = ", ".join(parts).rstrip(".") or type(error).__name__
    return text[:300] + "."
