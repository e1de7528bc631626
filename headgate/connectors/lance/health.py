"""True if a Lance dataset can be read, told instead of raised. Imports pylance only when called (fork safety).

Lance keeps no checksums: a missing or cut file, a page that cannot be decoded and a wrong row count are found, a
flipped value is not.
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
"""Rows read at once: memory is bounded by a few of these."""


@dataclass(frozen=True, slots=True)
class DatasetHealth:
    """What reading a dataset showed."""

    fault: str | None
    """Why it cannot be read, as Lance says it."""
    physical_rows: int = 0
    """Rows in its files, deleted ones included."""
    missing_indexes: tuple[str, ...] = ()
    """Indexes that it names and whose files are gone."""


def look_over(store: ObjectStore, key: str = "", version: int | None = None) -> DatasetHealth:
    """Open it, and let Lance look at every file's footer and every deletion file. Reads no rows."""
    return _guarded(store, key, version, lambda dataset: dataset.validate())


def read_through(store: ObjectStore, key: str = "") -> DatasetHealth:
    """The same, and decode every row."""

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
    except BaseException as error:  # native code that panics raises what is no Exception
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
    """Names and folders. Lance's own bookkeeping has no files, and a shallow clone's lie elsewhere."""
    for index in dataset.describe_indices():
        folders = [str(segment.uuid) for segment in index.segments if segment.base_id is None]
        if not index.name.startswith("__lance"):
            yield index.name, folders


def _has_files(store: ObjectStore, key: str, index: str) -> bool:
    prefix = f"{key}/_indices/{index}/" if key else f"_indices/{index}/"
    return store.any_below(prefix)


def _reason(error: BaseException) -> str:
    """Native's text without the places in its own source, which follow commas."""
    parts = [part for part in str(error).strip().split(", ") if ".rs:" not in part]
    text = ", ".join(parts).rstrip(".") or type(error).__name__
    return text[:300] + "."
