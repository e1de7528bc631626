"""A stand-in for pylance: datasets as JSON objects in the simulated store, with the part of its face that headgate
calls.

A version is one object, put if absent, as Lance's is. Which changes conflict was read off pylance, pair by pair, and
`test_stand_in.py` asks both. An operation is one step of the schedule, and may fail, be lost or come late.

Data files lie beside the manifests of the base; an SSTable's rows lie in its one manifest.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from tests.simulation.lance.versions import (
    Change,
    Conflict,
    DataFile,
    Fragment,
    FragmentMetadata,
    Version,
    conflicts,
    decode,
    renamed,
    renumbered,
    schema_of,
    values_of,
)
from tests.simulation.store import WRITE_FAULTS, SimStore

STORES: dict[str, SimStore] = {}
"""By URI: every simulated store that datasets may lie in."""
MEM_WAL: Mapping[str, Any] = {"maintain_all_indexes": False, "maintained_indexes": [], "sharding_specs": []}
_LAST = 2**64 - 1


def place(uri: str) -> tuple[SimStore, str]:
    """The store and the folder in it, with a slash behind it unless it is the root."""
    for root, store in STORES.items():
        if uri == root:
            return store, ""
        if uri.startswith(f"{root}/"):
            return store, f"{uri[len(root) + 1 :]}/"
    raise ValueError(f"no simulated store has {uri}")


def manifest_key(folder: str, version: int) -> str:
    """The name of a version's object."""
    return f"{folder}_versions/{_LAST - version:020d}.manifest"


def numbers(store: SimStore, folder: str) -> list[int]:
    names = store.objects.below(f"{folder}_versions/")
    return [_LAST - int(name.rpartition("/")[2].removesuffix(".manifest")) for name in names]


class Dataset:
    """`lance.LanceDataset`, as far as headgate calls it."""

    data_storage_version = "2.0"

    def __init__(self, uri: str, version: int, found: Version) -> None:
        self.uri, self.version, self._found = uri, version, found
        self._store, self._folder = place(uri)

    @property
    def lance_schema(self) -> Any:
        return schema_of(self._found.schema)[0]

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self._found.schema)[1]

    @property
    def marks(self) -> Mapping[str, int]:
        """Per shard native's mark."""
        return self._found.marks

    @property
    def highest(self) -> int:
        """The highest id that a fragment ever had."""
        return self._found.highest

    def config(self) -> Mapping[str, str]:
        return dict(self._found.config)

    def mem_wal_index_details(self) -> Mapping[str, Any] | None:
        return self._found.mem_wal

    def describe_indices(self) -> list[Any]:
        return []

    def get_fragments(self) -> list[Fragment]:
        if self._found.rows is not None:
            return [Fragment(FragmentMetadata(0, (), len(next(iter(self._found.rows.values()), ()))))]
        return [Fragment(one) for one in self._found.fragments]

    def validate(self) -> None:
        """Raises where a file is missing."""
        for one in self._found.fragments:
            for file in one.files:
                self._file(file)

    def get_fragment(self, number: int) -> Fragment:
        return next(one for one in self.get_fragments() if one.fragment_id == number)

    def count_rows(self) -> int:
        return sum(one.physical_rows - len(one.deleted) for one in self._found.fragments)

    def versions(self) -> list[dict[str, int]]:
        self._store.lance_read("list versions")
        return [{"version": one} for one in sorted(numbers(self._store, self._folder))]

    def read_transaction(self, version: int) -> Change:
        self._store.lance_read(f"read transaction {version}")
        return read_version(self._store, self._folder, version).change

    def checkout_latest(self) -> None:
        self._found = latest(self.uri)._found

    # -- rows --------------------------------------------------------------------------------

    def scanner(self, columns: Sequence[str] | None = None, fragments: Any = None, **_: Any) -> Any:
        names = list(columns) if columns is not None else self.schema.names
        chosen = None if fragments is None else {one.fragment_id for one in fragments}
        batches = [one.select(names) for one in self._batches(chosen)]
        return SimpleNamespace(
            to_batches=lambda: iter(batches),
            to_table=lambda: pa.Table.from_batches(batches, schema=pa.schema([self.schema.field(n) for n in names])),
        )

    def _batches(self, chosen: set[int] | None) -> Iterator[pa.RecordBatch]:
        if self._found.rows is not None:
            yield self._batch(self._found.rows, len(next(iter(self._found.rows.values()), ())), ())
            return
        for one in self._found.fragments:
            if chosen is None or one.id in chosen:
                values: dict[str, Sequence[Any]] = {}
                for file in one.files:
                    values |= self._file(file)
                yield self._batch(values, one.physical_rows, one.deleted)

    def _file(self, file: DataFile) -> Mapping[str, Sequence[Any]]:
        store, folder = (self._store, self._folder) if file.base_id is None else place(file.base_id)
        key = f"{folder}data/{file.path}"
        store.lance_read(f"read {key[-12:]}")
        if key not in store.objects.stored:
            raise OSError(f"LanceError(IO): Object at location {key} not found")
        found: Mapping[str, Sequence[Any]] = json.loads(store.objects.stored[key][0])
        return found

    def _batch(self, values: Mapping[str, Sequence[Any]], count: int, deleted: Sequence[int]) -> pa.RecordBatch:
        ids, gone = schema_of(self._found.schema)[2], set(deleted)
        stay = [at for at in range(count) if at not in gone]
        columns = [
            pa.array([values[str(one)][at] for at in stay] if str(one) in values else [None] * len(stay), kind.type)
            for one, kind in zip(ids, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    # -- changes -----------------------------------------------------------------------------

    def update_config(self, values: Mapping[str, str | None]) -> None:
        kept = {key: text for key, text in {**self._found.config, **values}.items() if text is not None}
        self._change(
            Change("config", keys=tuple(values)),
            lambda there: replace(there, config={k: t for k, t in {**there.config, **values}.items() if t is not None}),
        )
        self._found = replace(self._found, config=kept)

    def initialize_mem_wal(self, maintained_indexes: Sequence[str] | None = None, **_: Any) -> None:
        self._change(Change("index"), lambda there: replace(there, mem_wal=MEM_WAL))

    def merge_insert(self, key: Sequence[str]) -> MergeInsert:
        return MergeInsert(self, list(key))

    def add_columns(self, column: pa.Field) -> None:
        parts = (*self._found.schema, *renumbered(column, max(schema_of(self._found.schema)[2], default=-1) + 1))
        self._change(Change("add"), lambda there: replace(there, schema=parts))

    def alter_columns(self, *changes: Mapping[str, str]) -> None:
        for change in changes:
            names = {change["path"]: change["name"]}
            parts = renamed(self._found.schema, names)
            self._change(Change("project"), lambda there, parts=parts: replace(there, schema=parts))

    def drop_columns(self, names: Sequence[str]) -> None:
        own = schema_of(self._found.schema)[0].fields()
        kept = [part for part, one in zip(self._found.schema[1:], own, strict=True) if one.name() not in names]
        parts = (self._found.schema[0], *kept)
        self._change(Change("project"), lambda there: replace(there, schema=parts))

    def _change(self, change: Change, made: Any) -> int:
        """The version that this makes. Raises Conflict, and OSError where the store failed."""
        return commit(self._store, self._folder, self.version, change, made)

    def cleanup_old_versions(self, versions: Sequence[int], **_: Any) -> Any:
        store, folder = self._store, self._folder
        tagged = {one["version"] for one in Tags(self)._all().values()}
        there = [one for one in numbers(store, folder) if one not in versions or one in tagged]
        named = {
            file.path for one in there for part in read_version(store, folder, one).fragments for file in part.files
        }  # as Lance does: of all versions that stay
        files = {
            file.path
            for one in versions
            if one in numbers(store, folder)
            for part in read_version(store, folder, one).fragments
            for file in part.files
            if file.base_id is None
        }
        for key in (
            *(manifest_key(folder, version) for version in sorted(set(versions) - tagged)),
            *(f"{folder}data/{path}" for path in sorted(files - named)),
        ):
            with store.lance(f"clean up {key[-16:]}", WRITE_FAULTS) as put:
                put(key, None)
        return SimpleNamespace(bytes_removed=0)

    @property
    def tags(self) -> Tags:
        return Tags(self)

    def deep_clone(self, uri: str, version: int, storage_options: Any = None) -> None:
        self._clone(uri, deep=True)

    def shallow_clone(self, uri: str, version: int, storage_options: Any = None) -> None:
        self._clone(uri, deep=False)

    def _clone(self, uri: str, *, deep: bool) -> None:
        target, folder = place(uri)
        fragments = self._found.fragments
        if deep:
            for file in [file for one in fragments for file in one.files]:
                source, under = (self._store, self._folder) if file.base_id is None else place(file.base_id)
                with target.lance("copy rows", WRITE_FAULTS) as put:
                    put(f"{folder}data/{file.path}", source.objects.stored[f"{under}data/{file.path}"][0])
            fragments = tuple(
                replace(one, files=tuple(replace(file, base_id=None) for file in one.files)) for one in fragments
            )
        else:
            fragments = tuple(
                replace(one, files=tuple(replace(file, base_id=file.base_id or self.uri) for file in one.files))
                for one in fragments
            )
        put_version(target, folder, self.version, replace(self._found, fragments=fragments))


class Tags:
    """`LanceDataset.tags`."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def create(self, tag: str, version: int) -> None:
        store, folder = self._dataset._store, self._dataset._folder
        with store.lance("put tag", WRITE_FAULTS) as put:
            key = f"{folder}_refs/tags/{tag}.json"
            if key in store.objects.stored:
                raise ValueError(f"tag {tag} exists")
            if version not in numbers(store, folder):
                raise ValueError(f"version {version} not found")
            put(key, json.dumps({"version": version}).encode())

    def delete(self, tag: str) -> None:
        store, folder = self._dataset._store, self._dataset._folder
        with store.lance("delete tag", WRITE_FAULTS) as put:
            key = f"{folder}_refs/tags/{tag}.json"
            if key not in store.objects.stored:
                raise ValueError(f"tag {tag} does not exist")
            put(key, None)

    def list(self) -> dict[str, dict[str, int]]:
        self._dataset._store.lance_read("list tags")
        return self._all()

    def _all(self) -> dict[str, dict[str, int]]:
        store, under = self._dataset._store, f"{self._dataset._folder}_refs/tags/"
        return {
            key.removeprefix(under).removesuffix(".json"): json.loads(store.objects.stored[key][0])
            for key in store.objects.below(under)
        }


class MergeInsert:
    """`LanceDataset.merge_insert`, as headgate configures it: delete what matches, or replace and insert."""

    def __init__(self, dataset: Dataset, key: list[str]) -> None:
        self._dataset, self._key = dataset, key
        self._deletes = False
        self._marks: dict[str, int] = {}

    def when_matched_delete(self) -> MergeInsert:
        self._deletes = True
        return self

    def when_matched_update_all(self) -> MergeInsert:
        return self

    def when_not_matched_insert_all(self) -> MergeInsert:
        return self

    def conflict_retries(self, tries: int) -> MergeInsert:
        return self

    def mark_sstables_as_compacted(self, marks: Iterable[Any]) -> MergeInsert:
        self._marks = {one.shard_id: one.generation for one in marks}
        return self

    def execute(self, rows: pa.Table) -> dict[str, int]:
        data, found = self._dataset, self._dataset._found
        column = self._key[0]
        keys, ids = set(rows.column(column).to_pylist()), schema_of(found.schema)[2]
        number = str(ids[data.schema.names.index(column)])
        hit: dict[int, list[int]] = {}
        for one in found.fragments:
            for file in one.files:
                values = data._file(file).get(number, ())
                places = [at for at, value in enumerate(values) if value in keys and at not in one.deleted]
                if places:
                    hit[one.id] = places
        matched = sum(map(len, hit.values()))
        touched = tuple(f"{fragment}:{at}" for fragment, places in hit.items() for at in places)
        added = [] if self._deletes or not rows.num_rows else [file_of(data, rows)]
        change = Change("delete" if self._deletes else "upsert", rows=touched, marks=self._marks)

        def made(there: Version) -> Version:
            fragments = [
                replace(one, deleted=tuple(sorted({*one.deleted, *hit.get(one.id, ())}))) for one in there.fragments
            ]
            fragments += [replace(one, id=there.highest + 1 + at) for at, one in enumerate(added)]
            marks = {**there.marks, **self._marks}
            return replace(there, fragments=tuple(fragments), marks=marks, highest=there.highest + len(added))

        data.version = data._change(change, made)
        data._found = read_version(data._store, data._folder, data.version)
        if self._deletes:
            return {"num_deleted_rows": matched}
        return {"num_inserted_rows": rows.num_rows - matched, "num_updated_rows": matched}


# -- reading and committing ----------------------------------------------------------------


def read_version(store: SimStore, folder: str, version: int) -> Version:
    try:
        return decode(store.objects.stored[manifest_key(folder, version)][0])
    except KeyError:
        raise ValueError(f"Dataset at path {folder} version {version} was not found") from None


def latest(uri: str) -> Dataset:
    store, folder = place(uri)
    newest = max(numbers(store, folder), default=None)
    if newest is None:
        raise ValueError(f"Dataset at path {uri} was not found")
    return Dataset(uri, newest, read_version(store, folder, newest))


def commit(store: SimStore, folder: str, read: int, change: Change, made: Any) -> int:
    """The next version, unless a change since the one that was read stands against it. Raises Conflict."""
    with store.lance(f"commit {change.kind}", WRITE_FAULTS) as put:
        there = numbers(store, folder)
        for version in there:
            if version > read and conflicts(change, read_version(store, folder, version).change):
                raise Conflict(f"Retryable commit conflict for version {version}")
        newest = max(there)
        found = replace(made(read_version(store, folder, newest)), change=change)
        put(manifest_key(folder, newest + 1), found.encode())
    return newest + 1


def put_version(store: SimStore, folder: str, version: int, found: Version) -> None:
    with store.lance("write sstable" if found.rows is not None else "write dataset", WRITE_FAULTS) as put:
        key = manifest_key(folder, version)
        if key in store.objects.stored:
            raise Conflict(f"Retryable commit conflict for version {version}")
        put(key, found.encode())


def file_of(dataset: Dataset, rows: pa.Table) -> FragmentMetadata:
    """A data file that nothing names yet."""
    ids = [schema_of(dataset._found.schema)[2][dataset.schema.names.index(name)] for name in rows.schema.names]
    path = f"{uuid.uuid4()}.lance"
    data = json.dumps(values_of(rows, ids)).encode()
    with dataset._store.lance("write rows", WRITE_FAULTS) as put:
        put(f"{dataset._folder}data/{path}", data)
    return FragmentMetadata(0, (DataFile(path, tuple(ids)),), rows.num_rows)
