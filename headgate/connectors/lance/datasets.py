"""Writes small Lance datasets completely and durably, and reads datasets in order.

pylance is imported when a function is called, never before (fork safety).
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.lance.alignment import aligned
from headgate.connectors.lance.base.damage import newest_readable
from headgate.connectors.lance.base.files import sync_tree
from headgate.connectors.lance.errors import native_error, reading
from headgate.connectors.lance.fields import numbered_schema
from headgate.connectors.objects import ObjectStore, without_secrets
from headgate.errors import AlreadyExists, DataLoss, Transient

READAHEAD = 4
"""Batches that Lance reads ahead of the consumer: this bounds the memory."""


@dataclass(frozen=True)
class TextIndex:
    """A full-text index of the base, which every SSTable has as well."""

    name: str
    column: str
    parameters: Mapping[str, Any]


def new_session(index_bytes: int, metadata_bytes: int) -> Any:
    """A Lance session: its caches of indexes and file metadata, of these sizes, outlive a single opened dataset."""
    import lance

    return lance.Session(  # type: ignore[attr-defined]
        index_cache_size_bytes=index_bytes, metadata_cache_size_bytes=metadata_bytes
    )


def open_dataset(store: ObjectStore, key: str = "", version: int | None = None, session: Any = None) -> Any:
    """The Lance dataset at a key of the store. Raises DataLoss if there is none, Transient.

    If a power cut damaged the base's newest manifests, this opens the newest readable version, see
    `connectors.lance.base.damage`.
    """
    import lance

    uri, options = store.locate(key)
    try:
        return lance.dataset(uri, version=version, storage_options=options or None, session=session)
    except (ValueError, OSError) as error:
        if version is None and not key and (older := newest_readable(store)) is not None:
            return open_dataset(store, version=older, session=session)
        what = f"Opening the Lance dataset {key or 'of the table'} failed."
        raise native_error(what, error, DataLoss, store=store.uri, key=key or None) from without_secrets(error)


def field_ids(dataset: Any) -> list[int]:
    """The ids of all fields, in depth-first order."""

    def inside(field: Any) -> Iterator[int]:
        yield field.id()
        for child in field.children():
            yield from inside(child)

    return [found for field in dataset.lance_schema.fields() for found in inside(field)]


def text_indexes(dataset: Any) -> tuple[TextIndex, ...]:
    """The full-text indexes of a dataset with their parameters."""
    found = {}
    for index in dataset.describe_indices():
        if index.index_type.upper() in ("INVERTED", "FTS"):
            found[index.name] = TextIndex(index.name, index.field_names[0], _parameters(index.details))
    return tuple(found.values())


def write_dataset(
    store: ObjectStore,
    key: str,
    rows: pa.Table,
    *,
    field_ids: Sequence[int],
    primary_key: Sequence[str],
    indexes: Sequence[TextIndex],
    file_version: str,
) -> None:
    """Write a dataset of one fragment with these field ids, its key sidecar and full-text indexes. Durable on return.

    The key must be new. A crash leaves a folder that nothing names. Raises Transient.
    """
    uri, options = store.locate(key)
    try:
        dataset = _written(uri, aligned(rows), field_ids, file_version, options or None)
        for index in indexes:
            dataset.create_scalar_index(index.column, "INVERTED", name=index.name, **index.parameters)
        if primary_key:
            _write_key_sidecar(store, key, rows.select(list(primary_key)))
    except (OSError, ValueError, RuntimeError) as error:
        what = "Writing an SSTable failed."
        raise native_error(what, error, Transient, store=store.uri, key=key) from without_secrets(error)
    # Lance never syncs: before WAL entries may be deleted, the files and folders of their SSTable must be on disk.
    sync_tree(store, key)


def scan_dataset(
    dataset: Any,
    columns: Sequence[str] | None,
    filter: str | pc.Expression | None,
    batch_rows: int | None = None,
    fragments: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches of a dataset, or of some of its fragments, in order, read lazily."""
    with reading("A Lance dataset could not be read.", uri=dataset.uri):
        scanner = dataset.scanner(
            fragments=None if fragments is None else [dataset.get_fragment(one) for one in fragments],
            columns=list(columns) if columns is not None else None,
            filter=filter,
            batch_size=batch_rows,
            batch_readahead=READAHEAD,
            fragment_readahead=1,
        )
        yield from scanner.to_batches()


def dataset_in_memory(rows: pa.Table, indexes: Sequence[TextIndex] = ()) -> Any:
    """The rows as a Lance dataset in this process's memory, so that Lance can filter or search them."""
    import lance

    dataset = lance.write_dataset(aligned(rows), f"memory://{uuid.uuid4().hex}")
    for index in indexes:
        dataset.create_scalar_index(index.column, "INVERTED", name=index.name, **index.parameters)
    return dataset


def _written(uri: str, rows: pa.Table, ids: Sequence[int], file_version: str, options: Mapping[str, str] | None) -> Any:
    """Lance numbers new columns itself, so a projection onto a schema with other ids sets these."""
    import lance

    settings: dict[str, Any] = {
        "max_rows_per_file": max(rows.num_rows, 1),
        "data_storage_version": file_version,
        "storage_options": options,
    }
    if list(ids) == list(range(len(ids))):
        return lance.write_dataset(rows, uri, mode="create", **settings)
    lance.write_dataset(rows.slice(0, 0), uri, mode="create", **settings)
    numbered = lance.LanceOperation.Project(numbered_schema(rows.schema, ids))
    lance.LanceDataset.commit(uri, numbered, read_version=1, storage_options=dict(options) if options else None)
    return lance.write_dataset(rows, uri, mode="append", **settings)


def _parameters(details: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as create_scalar_index takes them, without the granularity: it is an enum there, and has one
    value for plain columns.

    For `max_token_length` None is a value: no limit. Lance does not return custom stop words here.
    """
    kept = {name: value for name, value in details.items() if value is not None or name == "max_token_length"}
    return {name: value for name, value in kept.items() if name != "document_granularity"}


def _write_key_sidecar(store: ObjectStore, key: str, keys: pa.Table) -> None:
    """Native's writer takes no storage options: for a store that needs them it writes to a local folder, which we
    upload."""
    from lance import lance as native

    write = native._write_pk_sidecar  # type: ignore[attr-defined]
    uri, options = store.locate(key)
    if not options and os.path.isdir(uri):
        write(uri, keys.to_reader(), keys.column_names)
        return
    with tempfile.TemporaryDirectory(prefix="headgate-") as folder:
        write(folder, keys.to_reader(), keys.column_names)
        for path in sorted(Path(folder).rglob("*.lance")):
            # No other call writes to this folder: an existing object is ours, and its response was lost.
            with suppress(AlreadyExists):
                store.put_if_absent(f"{key}/{path.relative_to(folder).as_posix()}", path.read_bytes())
