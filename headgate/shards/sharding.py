"""How a table's rows are distributed to shards: three frozen values, printed as they are made, and the shards' names.

Users and records use the names; a name never becomes a path. A shard's folder is its id, derived from the table's
random id and the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from headgate.connectors.lance.dataset import NativeSharding
from headgate.errors import InvalidInput, nearest
from headgate.shards.bucket import SUPPORTED, check_buckets, has_buckets
from headgate.shards.rows.schema import RowSchema

_PARTITION = re.compile(r"partition:(.+):(0|[1-9][0-9]*)", re.DOTALL)


@dataclass(frozen=True, slots=True, repr=False)
class Single:
    """All rows in one shard."""

    KIND: ClassVar = "single"

    def validate(self, schema: RowSchema) -> None:
        """Every table can have a single shard."""

    def shard_name(self) -> str:
        return "single"

    def known_names(self) -> tuple[str, ...]:
        """All possible names."""
        return (self.shard_name(),)

    def check_name(self, name: str) -> None:
        """Raises InvalidInput for a name that is not one of this sharding's shards."""
        _check_known(name, self.known_names())

    def native(self) -> NativeSharding:
        """The sharding in native Lance's form."""
        return NativeSharding("unsharded")

    def __repr__(self) -> str:
        return "single()"


@dataclass(frozen=True, slots=True, repr=False)
class Bucket:
    """Rows spread by native Lance's hash of a column, see `bucket_ids`."""

    KIND: ClassVar = "bucket"
    column: str
    n: int

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not isinstance(self.n, int) or isinstance(self.n, bool):
            raise InvalidInput(f"bucket needs a column name and a number, got {self.column!r} and {self.n!r}.")
        check_buckets(self.n)

    def validate(self, schema: RowSchema) -> None:
        """Raises InvalidInput unless the column exists, can be bucketed, and is a key column if the table has a key."""
        check_columns([self.column], schema, "bucket")
        kind = schema.logical.field(self.column).type
        if not has_buckets(kind):
            raise InvalidInput(
                f"bucket does not support column {self.column!r} of type {kind}.", advice=f"use a column of {SUPPORTED}"
            )
        if schema.primary_key and self.column not in schema.primary_key:
            raise InvalidInput(
                f"Bucket column {self.column!r} is not part of the primary key {list(schema.primary_key)}: rows "
                "with the same key could go to different shards.",
                advice=f"bucket by {schema.primary_key[0]!r}; nothing was written",
            )

    def shard_name(self, bucket: int) -> str:
        """The name of one bucket's shard."""
        if not 0 <= bucket < self.n:
            raise InvalidInput(f"Invalid bucket {bucket}; it must be from 0 to {self.n - 1}.")
        return f"bucket-{bucket:05d}"

    def known_names(self) -> tuple[str, ...]:
        """All possible names; the index is the bucket."""
        return tuple(self.shard_name(bucket) for bucket in range(self.n))

    def check_name(self, name: str) -> None:
        """Raises InvalidInput for a name that is not one of this sharding's shards."""
        _check_known(name, self.known_names())

    def native(self) -> NativeSharding:
        """The sharding in native Lance's form."""
        return NativeSharding("bucket", self.column, self.n)

    def __repr__(self) -> str:
        return f"bucket({self.column!r}, {self.n})"


@dataclass(frozen=True, slots=True, repr=False)
class ByPartition:
    """Rows spread by their topic partition, modulo `max_shards` if set; no shuffle.

    `key_is_partitioned` is the caller's guarantee that rows with the same key are always in the same partition.
    """

    KIND: ClassVar = "by_partition"

    max_shards: int | None = None
    key_is_partitioned: bool = False

    def __post_init__(self) -> None:
        most = self.max_shards
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise InvalidInput(f"max_shards must be at least 1, or None, got {most!r}.")
        if not isinstance(self.key_is_partitioned, bool):
            raise InvalidInput(f"key_is_partitioned must be True or False, got {self.key_is_partitioned!r}.")

    def validate(self, schema: RowSchema) -> None:
        """Raises InvalidInput for a table with a key unless the caller gave the guarantee."""
        if schema.primary_key and not self.key_is_partitioned:
            raise InvalidInput(
                "by_partition on a table with a primary key requires that each key stays in one partition.",
                advice="use by_partition(key_is_partitioned=True) if your producer guarantees that, else use "
                "bucket(); nothing was written",
            )

    def shard_name(self, topic: str, partition: int) -> str:
        """The name of the shard that a topic's partition goes to."""
        if not topic or partition < 0:
            raise InvalidInput(f"Invalid partition {partition} of topic {topic!r}.")
        return f"partition:{topic}:{partition % self.max_shards if self.max_shards else partition}"

    def known_names(self) -> tuple[str, ...]:
        """Unknown: topics are added and grow."""
        return ()

    def check_name(self, name: str) -> None:
        """Raises InvalidInput for a name that is not one of this sharding's shards."""
        if name == Single().shard_name():
            # A table without a key: rows of batch writes come from no partition.
            return
        match = _PARTITION.fullmatch(name)
        if match is None or (self.max_shards and int(match[2]) >= self.max_shards):
            below = f", numbers below {self.max_shards}" if self.max_shards else ""
            raise InvalidInput(f"The table has no shard {name!r}.", advice=f"use partition:TOPIC:N{below}")

    def native(self) -> NativeSharding:
        """Native Lance has no partitions: pass it the shard's id."""
        return NativeSharding()

    def __repr__(self) -> str:
        parts = [] if self.max_shards is None else [f"max_shards={self.max_shards}"]
        return f"by_partition({', '.join([*parts, *(['key_is_partitioned=True'] * self.key_is_partitioned)])})"


Sharding: TypeAlias = Single | Bucket | ByPartition


def single() -> Single:
    """All rows in one shard."""
    return Single()


def bucket(column: str, n: int) -> Bucket:
    """Rows spread over `n` shards by the hash of a column. On a table with a key it must be a key column."""
    return Bucket(column, n)


def by_partition(max_shards: int | None = None, *, key_is_partitioned: bool = False) -> ByPartition:
    """One shard per topic partition, or per partition modulo `max_shards`."""
    return ByPartition(max_shards, key_is_partitioned)


def check_columns(names: Iterable[str], schema: RowSchema, role: str) -> None:
    """Raises InvalidInput, with the nearest name, for a missing column."""
    there = schema.logical.names
    for name in names:
        if name not in there:
            near = nearest(name, there)
            hint = f"did you mean {near!r}?" if near else f"the table has {there}."
            raise InvalidInput(f"Column {name!r} for {role} not found; {hint}")


def _check_known(name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        names = known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"
        raise InvalidInput(f"The table has no shard {name!r}.", advice=f"use {nearest(name, known) or names}")
