"""A stand-in for pylance: datasets as JSON objects in the simulated store, with the part of its face that headgate calls.

A version is one object, put if absent, as Lance's is. Which changes conflict was read off pylance, pair by pair, and
`test_dataset.py` asks both. An operation is one step of the schedule, and may fail, be lost or come late.

Data files lie beside the manifests of the base; an SSTable's rows lie in its one manifest.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance.schema import LanceSchema

from tests.simulation.store import WRITE_FAULTS

if TYPE_CHECKING:
    from tests.simulation.store import SimStore

STORES: dict[str, SimStore] = {}
"""By URI: every simulated store that datasets may lie in."""
_KEY = b"lance-schema:unenforced-primary-key"
_LAST = 2**64 - 1
_MEM_WAL = {"maintain_all_indexes": False, "maintained_indexes": [], "sharding_specs": []}


class Conflict(OSError):
    """Somebody else's change came in between."""


# -- what a version says -------------------------------------------------------------------


@dataclass(frozen=True)
class DataFile:
    """Where rows are. `base_id`: in which other dataset, by its URI."""

    path: str
    fields: tuple[int, ...]
    base_id: str | None = None


@dataclass(frozen=True)
class FragmentMetadata:
    """Rows of one or more files; `deleted` are places of rows that are gone."""

    id: int
    files: tuple[DataFile, ...]
    physical_rows: int
    deleted: tuple[int, ...] = ()
    deletion_file: None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> FragmentMetadata:
        return _fragment(json.loads(text))


def _fragment(found: Mapping[str, Any]) -> FragmentMetadata:
    files = tuple(DataFile(one["path"], tuple(one["fields"]), one["base_id"]) for one in found["files"])
    return FragmentMetadata(found["id"], files, found["physical_rows"], tuple(found["deleted"]))


@dataclass(frozen=True)
class Fragment:
    """As a dataset shows it."""

    metadata: FragmentMetadata

    @property
    def fragment_id(self) -> int:
        return self.metadata.id

    @property
    def physical_rows(self) -> int:
        return self.metadata.physical_rows

    @property
    def num_deletions(self) -> int:
        return len(self.metadata.deleted)


@dataclass(frozen=True)
class Change:
    """What made a version, as far as conflicts ask."""

    kind: str
    """config, merge, append, upsert, delete, add, project, rewrite or index."""
    keys: tuple[str, ...] = ()
    """Of the configuration."""
    rows: tuple[str, ...] = ()
    """Fragment and place of those that were replaced or deleted."""
    fragments: tuple[int, ...] = ()
    """That a rewrite replaces."""
    marks: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def transaction_properties(self) -> Mapping[str, str]:
        return self.properties


_CONFLICTS: Mapping[str, frozenset[str]] = {
    "config": frozenset(),
    "index": frozenset({"index"}),
    "merge": frozenset({"merge", "append", "upsert", "delete", "add", "project", "rewrite"}),
    "append": frozenset({"merge", "add"}),
    "upsert": frozenset({"merge", "append", "delete", "add", "rewrite"}),
    "delete": frozenset({"merge", "add", "rewrite"}),
    "add": frozenset({"merge", "append", "upsert", "delete", "add", "project"}),
    "project": frozenset({"merge", "add", "project"}),
    "rewrite": frozenset({"merge"}),
}
"""Per change of ours the others that it never stands beside. What depends on keys, rows and marks is in `conflicts`."""


def conflicts(mine: Change, other: Change) -> bool:
    """Whether a change that was made from a version before the other one is refused."""
    if other.kind in _CONFLICTS[mine.kind] or set(mine.keys) & set(other.keys) or set(mine.rows) & set(other.rows):
        return True
    if mine.kind == "rewrite":
        touched = {int(row.partition(":")[0]) for row in other.rows} | set(other.fragments)
        return bool(touched & set(mine.fragments))
    return any(mark <= other.marks.get(shard, -1) for shard, mark in mine.marks.items())


@dataclass(frozen=True)
class Version:
    """One version of a dataset, whole."""

    schema: tuple[str, ...]
    """Lance's own parts of it, as hexadecimal text."""
    change: Change
    config: Mapping[str, str] = field(default_factory=dict)
    mem_wal: Mapping[str, Any] | None = None
    marks: Mapping[str, int] = field(default_factory=dict)
    fragments: tuple[FragmentMetadata, ...] = ()
    highest: int = -1
    """Of the fragments that ever were."""
    rows: Mapping[str, Sequence[Any]] | None = None
    """Of an SSTable: its columns, by field id."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@lru_cache(20_000)
def decode(data: bytes) -> Version:
    """A version from its bytes."""
    found = json.loads(data)
    change = found["change"]
    return Version(
        tuple(found["schema"]),
        Change(**{**change, "keys": tuple(change["keys"]), "rows": tuple(change["rows"])}),
        found["config"],
        found["mem_wal"],
        found["marks"],
        tuple(map(_fragment, found["fragments"])),
        found["highest"],
        found["rows"],
    )


@lru_cache(1_000)
def _parts(schema: pa.Schema) -> tuple[str, ...]:
    return _parts_of(LanceSchema.from_pyarrow(schema))


def _parts_of(schema: Any) -> tuple[str, ...]:
    metadata, *fields = schema.__reduce__()[1]
    return (metadata or "{}", *(one.hex() for one in fields))


@lru_cache(1_000)
def _schema(parts: tuple[str, ...]) -> tuple[Any, pa.Schema, tuple[int, ...]]:
    """Lance's, pyarrow's, and the field ids."""
    own = LanceSchema._from_protos(parts[0], *map(bytes.fromhex, parts[1:]))
    return own, own.to_pyarrow(), tuple(one.id() for one in own.fields())


# -- a dataset -----------------------------------------------------------------------------


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


def _numbers(store: SimStore, folder: str) -> list[int]:
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
        return _schema(self._found.schema)[0]

    @property
    def schema(self) -> pa.Schema:
        return _schema(self._found.schema)[1]

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
        return [Fragment(one) for one in self._found.fragments]

    def get_fragment(self, number: int) -> Fragment:
        return next(one for one in self.get_fragments() if one.fragment_id == number)

    def count_rows(self) -> int:
        return sum(one.physical_rows - len(one.deleted) for one in self._found.fragments)

    def versions(self) -> list[dict[str, int]]:
        self._store.lance_read("list versions")
        return [{"version": one} for one in sorted(_numbers(self._store, self._folder))]

    def read_transaction(self, version: int) -> Change:
        self._store.lance_read(f"read transaction {version}")
        return _read(self._store, self._folder, version).change

    def checkout_latest(self) -> None:
        self._found = _latest(self.uri)._found

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
        ids, gone = _schema(self._found.schema)[2], set(deleted)
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
        self._change(Change("index"), lambda there: replace(there, mem_wal=_MEM_WAL))

    def merge_insert(self, key: Sequence[str]) -> Merge:
        return Merge(self, list(key))

    def add_columns(self, column: pa.Field) -> None:
        parts = (*self._found.schema, *_renumbered(column, max(_schema(self._found.schema)[2], default=-1) + 1))
        self._change(Change("add"), lambda there: replace(there, schema=parts))

    def alter_columns(self, *changes: Mapping[str, str]) -> None:
        for change in changes:
            names = {change["path"]: change["name"]}
            parts = _renamed(self._found.schema, names)
            self._change(Change("project"), lambda there, parts=parts: replace(there, schema=parts))

    def drop_columns(self, names: Sequence[str]) -> None:
        own = _schema(self._found.schema)[0].fields()
        kept = [part for part, one in zip(self._found.schema[1:], own, strict=True) if one.name() not in names]
        parts = (self._found.schema[0], *kept)
        self._change(Change("project"), lambda there: replace(there, schema=parts))

    def _change(self, change: Change, made: Any) -> int:
        """The version that this makes. Raises Conflict, and OSError where the store failed."""
        return _commit(self._store, self._folder, self.version, change, made)

    def cleanup_old_versions(self, versions: Sequence[int], **_: Any) -> Any:
        store, folder = self._store, self._folder
        tagged = {one["version"] for one in Tags(self)._all().values()}
        there = [one for one in _numbers(store, folder) if one not in versions or one in tagged]
        named = {
            file.path for one in there for part in _read(store, folder, one).fragments for file in part.files
        }  # as Lance does: of all versions that stay
        files = {
            file.path
            for one in versions
            if one in _numbers(store, folder)
            for part in _read(store, folder, one).fragments
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
        _put(target, folder, self.version, replace(self._found, fragments=fragments))


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
            if version not in _numbers(store, folder):
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


class Merge:
    """`LanceDataset.merge_insert`, as headgate configures it: delete what matches, or replace and insert."""

    def __init__(self, dataset: Dataset, key: list[str]) -> None:
        self._dataset, self._key = dataset, key
        self._deletes = False
        self._marks: dict[str, int] = {}

    def when_matched_delete(self) -> Merge:
        self._deletes = True
        return self

    def when_matched_update_all(self) -> Merge:
        return self

    def when_not_matched_insert_all(self) -> Merge:
        return self

    def conflict_retries(self, tries: int) -> Merge:
        return self

    def mark_sstables_as_compacted(self, marks: Iterable[CompactedSsTable]) -> Merge:
        self._marks = {one.shard_id: one.generation for one in marks}
        return self

    def execute(self, rows: pa.Table) -> dict[str, int]:
        data, found = self._dataset, self._dataset._found
        column = self._key[0]
        keys, ids = set(rows.column(column).to_pylist()), _schema(found.schema)[2]
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
        added = [] if self._deletes or not rows.num_rows else [_file_of(data, rows)]
        change = Change("delete" if self._deletes else "upsert", rows=touched, marks=self._marks)

        def made(there: Version) -> Version:
            fragments = [
                replace(one, deleted=tuple(sorted({*one.deleted, *hit.get(one.id, ())}))) for one in there.fragments
            ]
            fragments += [replace(one, id=there.highest + 1 + at) for at, one in enumerate(added)]
            marks = {**there.marks, **self._marks}
            return replace(there, fragments=tuple(fragments), marks=marks, highest=there.highest + len(added))

        data.version = data._change(change, made)
        data._found = _read(data._store, data._folder, data.version)
        if self._deletes:
            return {"num_deleted_rows": matched}
        return {"num_inserted_rows": rows.num_rows - matched, "num_updated_rows": matched}


@dataclass(frozen=True)
class CompactedSsTable:
    shard_id: str
    generation: int


# -- reading and committing ----------------------------------------------------------------


def _read(store: SimStore, folder: str, version: int) -> Version:
    try:
        return decode(store.objects.stored[manifest_key(folder, version)][0])
    except KeyError:
        raise ValueError(f"Dataset at path {folder} version {version} was not found") from None


def _latest(uri: str) -> Dataset:
    store, folder = place(uri)
    newest = max(_numbers(store, folder), default=None)
    if newest is None:
        raise ValueError(f"Dataset at path {uri} was not found")
    return Dataset(uri, newest, _read(store, folder, newest))


def _commit(store: SimStore, folder: str, read: int, change: Change, made: Any) -> int:
    """The next version, unless a change since the one that was read stands against it. Raises Conflict."""
    with store.lance(f"commit {change.kind}", WRITE_FAULTS) as put:
        numbers = _numbers(store, folder)
        for version in numbers:
            if version > read and conflicts(change, _read(store, folder, version).change):
                raise Conflict(f"Retryable commit conflict for version {version}")
        newest = max(numbers)
        found = replace(made(_read(store, folder, newest)), change=change)
        put(manifest_key(folder, newest + 1), found.encode())
    return newest + 1


def _put(store: SimStore, folder: str, version: int, found: Version) -> None:
    with store.lance("write sstable" if found.rows is not None else "write dataset", WRITE_FAULTS) as put:
        key = manifest_key(folder, version)
        if key in store.objects.stored:
            raise Conflict(f"Retryable commit conflict for version {version}")
        put(key, found.encode())


def _renumbered(column: pa.Field, number: int) -> tuple[str, ...]:
    from headgate.connectors.lance.fields import numbered_schema

    return _parts_of(numbered_schema(pa.schema([column]), [number]))[1:]


def _renamed(parts: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    own, schema, ids = _schema(parts)
    from headgate.connectors.lance.fields import numbered_schema

    return _parts_of(numbered_schema(schema.rename_columns([names.get(one, one) for one in schema.names]), ids))


def _values(rows: pa.Table, ids: Sequence[int]) -> dict[str, list[Any]]:
    return {str(number): column.to_pylist() for number, column in zip(ids, rows.columns, strict=True)}


def _file_of(dataset: Dataset, rows: pa.Table) -> FragmentMetadata:
    """A data file that nothing names yet."""
    ids = [_schema(dataset._found.schema)[2][dataset.schema.names.index(name)] for name in rows.schema.names]
    path = f"{uuid.uuid4()}.lance"
    data = json.dumps(_values(rows, ids)).encode()
    with dataset._store.lance("write rows", WRITE_FAULTS) as put:
        put(f"{dataset._folder}data/{path}", data)
    return FragmentMetadata(0, (DataFile(path, tuple(ids)),), rows.num_rows)


# -- the module ------------------------------------------------------------------------------


def open_dataset(uri: str, version: int | None = None, **_: Any) -> Dataset:
    """`lance.dataset`."""
    store, folder = place(uri)
    store.lance_read(f"open {'sstable' if folder.startswith('_mem_wal/') else 'base'}")
    return _latest(uri) if version is None else Dataset(uri, version, _read(store, folder, version))


def write_dataset(rows: pa.Table, uri: Any, mode: str = "create", **_: Any) -> Dataset:
    """`lance.write_dataset`; in memory too, where columns are rehearsed."""
    if isinstance(uri, str) and uri.startswith("memory://") and not any(uri.startswith(root) for root in STORES):
        return _Rehearsal(rows.schema)
    store, folder = place(uri)
    if mode == "append":
        dataset = _latest(uri)
        made = replace(dataset._found, change=Change("append"), rows=_values(rows, _schema(dataset._found.schema)[2]))
        _put(store, folder, dataset.version + 1, made)
        return _latest(uri)
    parts = _parts(rows.schema)
    inline = _values(rows, _schema(parts)[2]) if folder.startswith("_mem_wal/") else None
    _put(store, folder, 1, Version(parts, Change("append"), rows=inline))
    return _latest(uri)


def create(uri: str, schema: pa.Schema, config: Mapping[str, str]) -> None:
    """A base with its MemWAL, as `create_table` leaves it."""
    store, folder = place(uri)
    _put(store, folder, 1, Version(_parts(schema), Change("append"), config=config, mem_wal=_MEM_WAL))


class _Rehearsal:
    """A dataset in memory: its columns alone."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema, self.version = schema, 1
        self.uri = "memory://rehearsal"
        self._parts = _parts(schema)

    @property
    def lance_schema(self) -> Any:
        return _schema(self._parts)[0]

    def get_fragments(self) -> list[Any]:
        return []

    def checkout_latest(self) -> None:
        pass

    def alter_columns(self, change: Mapping[str, str]) -> None:
        self._parts = _renamed(self._parts, {change["path"]: change["name"]})
        self.schema = _schema(self._parts)[1]

    def drop_columns(self, names: Sequence[str]) -> None:
        self.schema = pa.schema([one for one in self.schema if one.name not in names])

    def scanner(self, columns: Sequence[str]) -> Any:
        return SimpleNamespace(to_table=lambda: pa.schema([self.schema.field(one) for one in columns]).empty_table())


@dataclass(frozen=True)
class MergeOperation:
    fragments: Sequence[FragmentMetadata]
    schema: Any


@dataclass(frozen=True)
class ProjectOperation:
    schema: Any


@dataclass(frozen=True)
class Transaction:
    read_version: int
    operation: Any
    uuid: str = ""
    transaction_properties: Mapping[str, str] = field(default_factory=dict)


class LanceDataset:
    """The class, for its `commit`."""

    @staticmethod
    def commit(base: Any, change: Any, read_version: int | None = None, **_: Any) -> Any:
        if isinstance(base, _Rehearsal):
            base._parts = _parts_of(change.schema)
            base.schema = _schema(base._parts)[1]
            return base
        uri = base if isinstance(base, str) else base.uri
        store, folder = place(uri)
        if isinstance(change, Transaction):
            fragments = tuple(change.operation.fragments)
            made = Change("merge", properties=dict(change.transaction_properties))
            highest = max((one.id for one in fragments), default=-1)
            _commit(
                store,
                folder,
                change.read_version,
                made,
                lambda there: replace(there, fragments=fragments, highest=max(there.highest, highest)),
            )
        else:
            parts = _parts_of(change.schema)
            kind = "add" if len(parts) > len(_latest(uri)._found.schema) else "project"
            _commit(store, folder, read_version or 1, Change(kind), lambda there: replace(there, schema=parts))
        return None


def write_fragments(reader: pa.RecordBatchReader, dataset: Dataset, **_: Any) -> list[FragmentMetadata]:
    """`lance.fragment.write_fragments`."""
    rows = reader.read_all()
    return [_file_of(dataset, rows)] if rows.num_rows else []


class _Compaction:
    """`lance.optimize.Compaction`: all fragments that are not left alone become one."""

    @staticmethod
    def plan(dataset: Dataset, options: Mapping[str, Any]) -> Any:
        chosen = [
            one.fragment_id for one in dataset.get_fragments() if one.fragment_id not in options["excluded_fragment_ids"]
        ]
        tasks = [_Task(json.dumps(chosen))] if len(chosen) > 1 else []
        return SimpleNamespace(read_version=dataset.version, tasks=tasks)

    @staticmethod
    def commit(dataset: Dataset, made: Sequence[_Result]) -> None:
        for one in made:
            found = json.loads(one.text)
            gone, fresh = set(found["old"]), _fragment(found["new"])

            def merged(there: Version, gone: set[int] = gone, fresh: FragmentMetadata = fresh) -> Version:
                kept = [old for old in there.fragments if old.id not in gone]
                number = there.highest + 1
                return replace(there, fragments=(*kept, replace(fresh, id=number)), highest=number)

            read = found["version"]
            _commit(dataset._store, dataset._folder, read, Change("rewrite", fragments=tuple(gone)), merged)


@dataclass(frozen=True)
class _Result:
    text: str

    def json(self) -> str:
        return self.text

    from_json = classmethod(lambda cls, text: cls(text))


@dataclass(frozen=True)
class _Task:
    text: str

    def json(self) -> str:
        return self.text

    from_json = classmethod(lambda cls, text: cls(text))

    def execute(self, dataset: Dataset) -> _Result:
        chosen = json.loads(self.text)
        rows = dataset.scanner(fragments=[dataset.get_fragment(one) for one in chosen]).to_table()
        made = _file_of(dataset, rows).to_json()
        return _Result(json.dumps({"old": chosen, "new": made, "version": dataset.version}))


def modules() -> dict[str, ModuleType]:
    """What `import lance` finds in a simulation."""
    import lance.schema

    top, fragment, optimize = ModuleType("lance"), ModuleType("lance.fragment"), ModuleType("lance.optimize")
    for name, value in {
        "dataset": open_dataset,
        "write_dataset": write_dataset,
        "LanceDataset": LanceDataset,
        "LanceOperation": SimpleNamespace(Merge=MergeOperation, Project=ProjectOperation),
        "Transaction": Transaction,
        "FragmentMetadata": FragmentMetadata,
        "CompactedSsTable": CompactedSsTable,
        "Session": lambda **_: SimpleNamespace(size_bytes=lambda: 0),
        "schema": lance.schema,
        "fragment": fragment,
        "optimize": optimize,
    }.items():
        setattr(top, name, value)
    fragment.write_fragments = write_fragments  # type: ignore[attr-defined]
    optimize.Compaction, optimize.CompactionTask = _Compaction, _Task  # type: ignore[attr-defined]
    optimize.RewriteResult = _Result  # type: ignore[attr-defined]
    return {"lance": top, "lance.fragment": fragment, "lance.optimize": optimize}
