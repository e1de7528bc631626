"""What `import lance` finds in a simulation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa

from tests.simulation.lance.dataset import (
    MEM_WAL,
    STORES,
    Dataset,
    commit,
    file_of,
    latest,
    manifest_key,
    place,
    put_version,
    read_version,
)
from tests.simulation.lance.versions import (
    Change,
    FragmentMetadata,
    Version,
    fragment_of,
    parts_from,
    parts_of,
    renamed,
    schema_of,
    values_of,
)


@dataclass(frozen=True)
class CompactedSsTable:
    shard_id: str
    generation: int


def open_dataset(uri: str, version: int | None = None, **_: Any) -> Dataset:
    """`lance.dataset`."""
    store, folder = place(uri)
    store.lance_read(f"open {'sstable' if folder.startswith('_mem_wal/') else 'base'}")
    return latest(uri) if version is None else Dataset(uri, version, read_version(store, folder, version))


def write_dataset(rows: pa.Table, uri: Any, mode: str = "create", **_: Any) -> Any:
    """`lance.write_dataset`; in memory too, where columns are rehearsed."""
    if isinstance(uri, str) and uri.startswith("memory://") and not any(uri.startswith(root) for root in STORES):
        return _Rehearsal(rows.schema)
    store, folder = place(uri)
    if mode == "append":
        dataset = latest(uri)
        made = replace(
            dataset._found, change=Change("append"), rows=values_of(rows, schema_of(dataset._found.schema)[2])
        )
        put_version(store, folder, dataset.version + 1, made)
        return latest(uri)
    parts = parts_from(rows.schema)
    inline = values_of(rows, schema_of(parts)[2]) if folder.startswith("_mem_wal/") else None
    put_version(store, folder, 1, Version(parts, Change("append"), rows=inline))
    return latest(uri)


def create(uri: str, schema: pa.Schema, config: Mapping[str, str]) -> None:
    """A base with its MemWAL, as `create_table` leaves it: at once."""
    store, folder = place(uri)
    found = Version(parts_from(schema), Change("append"), config=config, mem_wal=MEM_WAL)
    store.objects.put(manifest_key(folder, 1), found.encode(), absent=True)


class _Rehearsal:
    """A dataset in memory: its columns alone."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema, self.version = schema, 1
        self.uri = "memory://rehearsal"
        self._parts = parts_from(schema)

    @property
    def lance_schema(self) -> Any:
        return schema_of(self._parts)[0]

    def get_fragments(self) -> list[Any]:
        return []

    def checkout_latest(self) -> None:
        pass

    def add_columns(self, column: pa.Field) -> None:
        self.schema = self.schema.append(column)

    def alter_columns(self, change: Mapping[str, str]) -> None:
        self._parts = renamed(self._parts, {change["path"]: change["name"]})
        self.schema = schema_of(self._parts)[1]

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
            base._parts = parts_of(change.schema)
            base.schema = schema_of(base._parts)[1]
            return base
        uri = base if isinstance(base, str) else base.uri
        store, folder = place(uri)
        if isinstance(change, Transaction):
            fragments = tuple(change.operation.fragments)
            made = Change("merge", properties=dict(change.transaction_properties))
            highest = max((one.id for one in fragments), default=-1)
            commit(
                store,
                folder,
                change.read_version,
                made,
                lambda there: replace(there, fragments=fragments, highest=max(there.highest, highest)),
            )
        else:
            parts = parts_of(change.schema)
            kind = "add" if len(parts) > len(latest(uri)._found.schema) else "project"
            commit(store, folder, read_version or 1, Change(kind), lambda there: replace(there, schema=parts))
        return None


def write_fragments(reader: pa.RecordBatchReader, dataset: Dataset, **_: Any) -> list[FragmentMetadata]:
    """`lance.fragment.write_fragments`."""
    rows = reader.read_all()
    return [file_of(dataset, rows)] if rows.num_rows else []


class _Compaction:
    """`lance.optimize.Compaction`: all fragments that are not left alone become one."""

    @staticmethod
    def plan(dataset: Dataset, options: Mapping[str, Any]) -> Any:
        chosen = [
            one.fragment_id
            for one in dataset.get_fragments()
            if one.fragment_id not in options["excluded_fragment_ids"]
        ]
        tasks = [_Task(json.dumps(chosen))] if len(chosen) > 1 else []
        return SimpleNamespace(read_version=dataset.version, tasks=tasks)

    @staticmethod
    def commit(dataset: Dataset, made: Sequence[_Result]) -> None:
        for one in made:
            found = json.loads(one.text)
            gone, fresh = set(found["old"]), fragment_of(found["new"])

            def merged(there: Version, gone: set[int] = gone, fresh: FragmentMetadata = fresh) -> Version:
                kept = [old for old in there.fragments if old.id not in gone]
                number = there.highest + 1
                return replace(there, fragments=(*kept, replace(fresh, id=number)), highest=number)

            read = found["version"]
            commit(dataset._store, dataset._folder, read, Change("rewrite", fragments=tuple(gone)), merged)


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
        made = file_of(dataset, rows).to_json()
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
