"""Operations on Lance datasets for the rest of the package. Imports pylance only when called (fork safety).

Every change here may be repeated. After an error it checks whether the dataset has the change already: a lost response
and an equal change by another process look the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from headgate.connectors.lance.base.damage import newest_readable
from headgate.connectors.lance.base.files import has_versions
from headgate.connectors.lance.datasets import TextIndex
from headgate.connectors.lance.errors import native_error
from headgate.connectors.objects import open_store, redact, scrubbed, without_secrets
from headgate.connectors.objects.wal_options import own_options
from headgate.errors import HeadgateError, InvalidInput, NotFound, StoreError

if TYPE_CHECKING:
    from lance import LanceDataset

Options: TypeAlias = Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class NativeSharding:
    """How native routes rows to shards. Without a transform, the caller names the shard."""

    transform: str | None = None
    column: str | None = None
    buckets: int | None = None


@dataclass(frozen=True, slots=True)
class MemWal:
    """The settings that `initialize_mem_wal` recorded. `maintained` None means every index, later ones too."""

    sharding: NativeSharding
    maintained: tuple[str, ...] | None

    @property
    def spec_id(self) -> int:
        """The id of the one sharding spec, as in shard manifests; 0 if there is none."""
        return 0 if self.sharding.transform is None else 1


@dataclass(frozen=True, slots=True)
class Base:
    """A Lance dataset at one version."""

    schema: pa.Schema
    field_ids: tuple[int, ...]
    """In depth-first order."""
    version: int
    rows: int
    config: Mapping[str, str]
    mem_wal: MemWal | None
    """None if MemWAL was never initialised, or an overwrite dropped it."""


def look(uri: str, storage_options: Options = None) -> Base | None:
    """The dataset as it is now, None if there is none. Raises StoreError."""
    try:
        dataset = _open(uri, storage_options)
    except NotFound:
        return None
    try:
        return _described(dataset)
    except (ValueError, OSError) as error:
        raise _failed("describe the dataset", uri, error) from without_secrets(error)


def read_schema(uri: str, storage_options: Options = None) -> tuple[pa.Schema, list[int]]:
    """The dataset's schema and its field ids in depth-first order. Raises NotFound if there is no dataset."""
    dataset = _open(uri, storage_options)
    return dataset.schema, list(_field_ids(dataset))


def rehearse(schema: pa.Schema, indexes: Sequence[TextIndex], sharding: NativeSharding) -> pa.Schema:
    """Create the dataset in memory. Returns the schema that it will have. Raises InvalidInput if Lance rejects it.

    On a real store a rejection would look like a failing store, and would come after the first write.
    """
    import lance

    try:
        dataset = lance.write_dataset(schema.empty_table(), "memory://")
        for index in indexes:
            dataset.create_scalar_index(index.column, "INVERTED", name=index.name, **index.parameters)
        names = [index.name for index in indexes]
        dataset.initialize_mem_wal(maintained_indexes=names, **_native_arguments(sharding))
        # Read by name, as compaction does: Lance accepts some names that it cannot find afterwards.
        read = dataset.scanner(columns=schema.names).to_table().schema.names
    except Exception as error:
        raise InvalidInput(f"Lance rejects the table: {_reason(error)}.") from without_secrets(error)
    if read != schema.names or dataset.schema.names != schema.names:
        raise InvalidInput("Lance would rename a column.", advice="use names without control characters")
    return dataset.schema


def rehearse_change(schema: pa.Schema, change: Callable[[LanceDataset], object], names: Sequence[str]) -> None:
    """Try a change of columns on an empty dataset in memory. Raises InvalidInput if Lance rejects it, or if the dataset
    then does not have exactly these names, readable by name.
    """
    import lance

    try:
        dataset = lance.write_dataset(schema.empty_table(), "memory://")
        change(dataset)
        dataset.checkout_latest()  # type: ignore[no-untyped-call]
        read = dataset.scanner(columns=list(names)).to_table().schema.names
    except Exception as error:
        raise InvalidInput(f"Lance rejects the columns: {_reason(error)}.", advice=_UNCHANGED) from without_secrets(
            error
        )
    if not read == dataset.schema.names == list(names):
        raise InvalidInput("Lance would rename a column.", advice=_UNCHANGED)


_UNCHANGED = "use plain names, without dots, quotes or control characters; nothing was written"


def ensure_base(uri: str, schema: pa.Schema, storage_options: Options = None) -> None:
    """Create an empty dataset, unless there is one already."""
    import lance

    try:
        lance.write_dataset(schema.empty_table(), uri, mode="create", storage_options=_options(storage_options))
    except Exception as error:
        if look(uri, storage_options) is None:
            raise _failed("create the dataset", uri, error) from without_secrets(error)


def ensure_full_text(uri: str, index: TextIndex, storage_options: Options = None, *, renew: bool = False) -> None:
    """Create a full-text index unless one of that name exists; with `renew` replace it."""
    dataset = _open(uri, storage_options)
    if index.name in _index_names(dataset) and not renew:
        return
    try:
        dataset.create_scalar_index(index.column, "INVERTED", name=index.name, replace=renew, **index.parameters)
    except Exception as error:
        if renew or index.name not in _index_names(_open(uri, storage_options)):
            raise _failed(f"index column {index.column!r}", uri, error) from without_secrets(error)


def ensure_mem_wal(uri: str, wanted: MemWal, storage_options: Options = None) -> None:
    """Initialise MemWAL. Raises InvalidInput if it is initialised with other settings."""
    dataset = _open(uri, storage_options)
    found = _mem_wal(dataset)
    if found is None:
        maintained = None if wanted.maintained is None else list(wanted.maintained)
        try:
            dataset.initialize_mem_wal(maintained_indexes=maintained, **_native_arguments(wanted.sharding))
            return
        except Exception as error:
            found = _mem_wal(_open(uri, storage_options))
            if found is None:
                raise _failed("initialise MemWAL", uri, error) from without_secrets(error)
    if found != wanted:
        raise InvalidInput(
            f"MemWAL of the dataset is initialised as {found}, but {wanted} was requested.", table=redact(uri)
        )


def swap_config(
    uri: str,
    key: str,
    expected: str | None,
    value: str,
    storage_options: Options = None,
    *,
    forget: Sequence[str] = (),
) -> bool:
    """Set one key of the dataset's configuration to `value` if it is still `expected` (None: absent). False if not.

    The same commit removes the keys to `forget`. Of two commits that change one key from the same version, Lance
    accepts exactly one.
    """
    dataset = _open(uri, storage_options)
    found = dataset.config().get(key)
    if found == value:
        return True
    if found != expected:
        return False
    try:
        dataset.update_config({key: value, **dict.fromkeys(forget)})
    except Exception as error:
        found = _open(uri, storage_options).config().get(key)
        if found == expected:
            raise _failed(f"set {key!r}", uri, error) from without_secrets(error)
    else:
        found = value
    return found == value


def bucket_ids(column: pa.Array, buckets: int) -> pa.Int32Array:
    """Native's bucket of each value; null goes to bucket 0. Raises ValueError for a type that native rejects.

    Starts no thread and opens nothing, so it also works in a forked child of a process that called it.
    """
    import lance
    from lance.schema import LanceSchema

    batch = pa.record_batch([column], names=["key"])
    field = lance.ShardingField("bucket", [0], "bucket", None, "int32", {"num_buckets": str(buckets)})
    spec = lance.ShardingSpec(1, [field])
    return lance.evaluate_sharding_spec(batch, spec, LanceSchema.from_pyarrow(batch.schema)).column(0)


def _open(uri: str, storage_options: Options) -> LanceDataset:
    import lance

    try:
        return lance.dataset(uri, storage_options=_options(storage_options))
    except (ValueError, OSError) as error:
        store = open_store(uri, storage_options)
        if (older := newest_readable(store)) is not None:
            return lance.dataset(uri, version=older, storage_options=_options(storage_options))
        # Native raises ValueError both for a missing dataset and for a failing store: ask the store.
        if has_versions(store):
            raise _failed("open the dataset", uri, error) from without_secrets(error)
        raise NotFound(
            f"No Lance table found at {redact(uri)}.", advice="check the URI, or create the table first"
        ) from without_secrets(error)


def _described(dataset: LanceDataset) -> Base:
    return Base(
        schema=dataset.schema,
        field_ids=tuple(_field_ids(dataset)),
        version=dataset.version,
        rows=dataset.count_rows(),
        config=dict(dataset.config()),
        mem_wal=_mem_wal(dataset),
    )


def _mem_wal(dataset: LanceDataset) -> MemWal | None:
    details = dataset.mem_wal_index_details()
    if details is None:
        return None
    maintained = None if details["maintain_all_indexes"] else tuple(details["maintained_indexes"])
    return MemWal(_sharding(dataset, details["sharding_specs"]), maintained)


def _sharding(dataset: LanceDataset, specs: Sequence[Mapping[str, Any]]) -> NativeSharding:
    fields = [field for spec in specs for field in spec["fields"]]
    if not fields:
        return NativeSharding()
    if len(fields) > 1:
        return NativeSharding("several fields")
    field = fields[0]
    columns = {column.id(): column.name() for column in dataset.lance_schema.fields()}
    column = columns.get(field["source_ids"][0], "(nested)") if field["source_ids"] else None
    buckets = field["parameters"].get("num_buckets")
    return NativeSharding(field["transform"], column, int(buckets) if buckets else None)


def _native_arguments(sharding: NativeSharding) -> dict[str, Any]:
    if sharding.transform == "bucket":
        return {"bucket_column": sharding.column, "num_buckets": sharding.buckets}
    return {"unsharded": True} if sharding.transform == "unsharded" else {}


def _index_names(dataset: LanceDataset) -> set[str]:
    return {index.name for index in dataset.describe_indices()}


def _field_ids(dataset: LanceDataset) -> Iterator[int]:
    for field in dataset.lance_schema.fields():
        yield from _ids(field)


def _ids(field: Any) -> Iterator[int]:
    yield field.id()
    for child in field.children():
        yield from _ids(child)


def _options(storage_options: Options) -> dict[str, str] | None:
    return own_options(storage_options) or None


def _failed(verb: str, uri: str, error: Exception) -> HeadgateError:
    return native_error(f"Lance failed to {verb}: {_reason(error)}.", error, StoreError, table=redact(uri))


def _reason(error: Exception) -> str:
    """Native's text without the source location after the last comma."""
    text = scrubbed(str(error)).strip().removesuffix(".")
    head, comma, tail = text.rpartition(", ")
    return (head if comma and ".rs:" in tail else text).rstrip(".") or type(error).__name__
