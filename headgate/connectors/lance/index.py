"""Full-text and vector indexes of a Lance dataset: describes them, builds one segment, commits segments.

Imports pylance only when called (fork safety). The callers in `search` guard against races that native does not guard
against; this module does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.connectors.lance.datasets import open_dataset, text_indexes
from headgate.connectors.lance.errors import native_error
from headgate.connectors.objects import ObjectStore, scrubbed, without_secrets
from headgate.errors import InvalidInput, StoreError, Transient


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment of the base."""

    rows: int
    """Rows that are not deleted."""
    files: tuple[str, ...]
    """The files with the column's values: if they differ, the values may differ."""


@dataclass(frozen=True, slots=True)
class SegmentLook:
    """One segment, as a version of the base describes it."""

    index_id: uuid.UUID
    fragments: frozenset[int]
    """The fragments it covers, including ones that no longer exist."""
    elsewhere: bool
    """True if its files are in the dataset of which this one is a shallow clone."""
    dataset_version: int
    nbytes: int


@dataclass(frozen=True)
class IndexLook:
    """A column's index at one version of the base."""

    version: int
    name: str
    field_id: int
    fragments: Mapping[int, Fragment]
    segments: tuple[SegmentLook, ...]
    parameters: Mapping[str, Any] | None
    """The parameters as native takes them. None if the column has no index."""


@dataclass(frozen=True, slots=True)
class NativeSegment:
    """A segment as native writes it into a version."""

    index_id: uuid.UUID
    fragments: tuple[int, ...]
    files: Mapping[str, int]
    """File names in its folder, with their sizes."""
    fields: tuple[int, ...]
    dataset_version: int
    index_version: int
    details: tuple[str, bytes]


Found: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Column and parameters of each index, by name."""

Find: TypeAlias = Callable[[Any], Found]
"""Finds a dataset's indexes of one kind."""


def text_parameters(dataset: Any) -> Found:
    """The full-text indexes of a dataset."""
    return {index.name: (index.column, index.parameters) for index in text_indexes(dataset)}


def vector_parameters(dataset: Any) -> Found:
    """The vector indexes of a dataset: their type and metric."""
    found = {}
    for index in dataset.describe_indices():
        if index.index_type.upper().startswith("IVF_"):
            metric = str(index.details.get("metric_type", "")).lower()
            found[index.name] = index.field_names[0], {"index_type": index.index_type.upper(), "metric": metric}
    return found


def look_index(store: ObjectStore, column: str, name: str, find: Find = text_parameters) -> IndexLook:
    """The column's index as it is now: the existing one of those that `find` finds, else a new one of that name.

    Raises InvalidInput if the column does not exist or another index has the name. DataLoss, StoreError.
    """
    dataset = open_dataset(store)
    fields = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    if column not in fields:
        raise InvalidInput(f"Column {column!r} not found; the table has {sorted(fields)}.", table=store.uri)
    described = {index.name: index for index in dataset.describe_indices()}
    of_column = {one: parameters for one, (of, parameters) in find(dataset).items() if of == column}
    existing = name if name in of_column else max(of_column, default=None)
    if existing is None and name in described:
        what = f"Index {name!r} of type {described[name].index_type} exists already, on {described[name].field_names}."
        raise InvalidInput(what, table=store.uri, advice="drop it, or rename it; nothing was written")
    field_id = fields[column]
    return IndexLook(
        version=dataset.version,
        name=existing or name,
        field_id=field_id,
        fragments={one.fragment_id: _fragment(one.metadata, field_id) for one in dataset.get_fragments()},
        segments=tuple(map(_segment, described[existing].segments)) if existing else (),
        parameters=of_column[existing] if existing else None,
    )


def check_parameters(store: ObjectStore, column: str, parameters: Mapping[str, Any]) -> None:
    """Raises InvalidInput if native rejects such an index. This tries it in memory and writes nothing."""
    import lance

    field = open_dataset(store).schema.field(column)
    try:
        dataset = lance.write_dataset(pa.schema([field]).empty_table(), f"memory://{uuid.uuid4().hex}")
        dataset.create_scalar_index(column, "INVERTED", **parameters)
    except Exception as error:
        reason = str(error).split(", /")[0].rstrip(".") or type(error).__name__
        raise InvalidInput(
            f"Lance rejects a full-text index of column {column!r}: {reason}.", table=store.uri
        ) from without_secrets(error)


def build_segment(
    store: ObjectStore,
    version: int,
    column: str,
    name: str,
    fragments: Sequence[int],
    parameters: Mapping[str, Any],
    index_id: uuid.UUID,
    index_type: str = "INVERTED",
) -> NativeSegment:
    """Index these fragments of one version into a new folder, texts into its staging. No version names it yet.

    Raises Transient if Lance fails, DataLoss if the version is missing.
    """
    dataset = open_dataset(store, version=version)
    try:
        index = dataset.create_index_uncommitted(
            column,
            index_type,
            name=name,
            replace=True,
            fragment_ids=list(fragments),
            index_uuid=str(index_id),
            **parameters,
        )
    except (OSError, ValueError, RuntimeError) as error:
        what = f"Lance failed to index column {column!r}: {scrubbed(str(error))[:300]}"
        raise native_error(what, error, Transient, table=store.uri, index=str(index_id)) from without_secrets(error)
    return NativeSegment(
        index_id=index_id,
        fragments=tuple(sorted(index.fragment_ids)),
        files={file.path: file.size_bytes for file in index.files},
        fields=tuple(index.fields),
        dataset_version=index.dataset_version,
        index_version=index.index_version,
        details=(index.index_details[0], bytes(index.index_details[1])),
    )


def commit_segments(
    store: ObjectStore, name: str, added: Sequence[NativeSegment], removed: Sequence[uuid.UUID], version: int
) -> bool:
    """Add and remove segments of one index, as seen at `version`. False if another commit came first: look again.

    Raises StoreError if it is unknown whether the commit landed.
    """
    from lance import LanceDataset, LanceOperation
    from lance.commit import CommitConflictError
    from lance.dataset import Index, IndexFile

    uri, options = store.locate()
    fields = list(added[0].fields)
    new = [
        Index(
            uuid=str(one.index_id),
            name=name,
            fields=list(one.fields),
            dataset_version=one.dataset_version,
            fragment_ids=set(one.fragments),  # type: ignore[arg-type]
            index_version=one.index_version,
            files=[IndexFile(path=path, size_bytes=size) for path, size in sorted(one.files.items())],
            index_details=one.details,
        )
        for one in added
    ]
    # Native finds the segments to remove by their id alone.
    old = [
        Index(uuid=str(one), name=name, fields=fields, dataset_version=version, fragment_ids=set(), index_version=0)  # type: ignore[arg-type]
        for one in removed
    ]
    try:
        operation = LanceOperation.CreateIndex(new, old)
        LanceDataset.commit(uri, operation, read_version=version, storage_options=options or None)
    except CommitConflictError:
        return False
    except (OSError, ValueError, RuntimeError) as error:
        what = f"Lance failed to commit index {name!r}: {scrubbed(str(error))[:300]}"
        raise native_error(what, error, StoreError, table=store.uri) from without_secrets(error)
    return True


def _fragment(metadata: Any, field_id: int) -> Fragment:
    files = [file.path for file in metadata.files if field_id in file.fields]
    overlays = [repr(overlay) for overlay in metadata.overlays or ()]
    return Fragment(metadata.num_rows, tuple(files + overlays))


def _segment(segment: Any) -> SegmentLook:
    return SegmentLook(
        index_id=uuid.UUID(str(segment.uuid)),
        fragments=frozenset(segment.fragment_ids),
        elsewhere=segment.base_id is not None,
        dataset_version=segment.dataset_version_at_last_update,
        nbytes=segment.size_bytes or 0,
    )
