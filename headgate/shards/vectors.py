"""Vector columns of a table: their metric, and how the base indexes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import pyarrow as pa

from headgate.errors import InvalidInput
from headgate.records import LEFT_OUT

Metric: TypeAlias = Literal["l2", "cosine", "dot"]
"""Distances as Lance computes them: squared Euclidean, 1 - cosine, 1 - dot product. Smaller is nearer."""

IndexKind: TypeAlias = Literal["IVF_PQ", "IVF_HNSW_SQ"]

MAX_DIMENSION = 65_536

TRAIN_ROWS = 65_536
"""Number of rows for a good training: 256 vectors for each of 256 codes."""

LEAST_TRAIN_ROWS = 512
"""Minimum: with fewer there are more codes than vectors."""


@dataclass(frozen=True, slots=True)
class VectorColumn:
    """A vector column, as table.json stores it."""

    column: str
    metric: Metric
    index: IndexKind = "IVF_PQ"
    train_rows: int = field(default=TRAIN_ROWS, metadata=LEFT_OUT)
    """The base gets the index when this many of its rows have a vector."""


@dataclass(frozen=True, slots=True)
class Vector:
    """The definition of a vector column for `create_table`. Made by `vector`."""

    metric: Metric = "l2"
    index: IndexKind = "IVF_PQ"
    dimension: int | None = None
    """Turns a DDL array column into vectors of this dimension."""
    half: bool = False
    """With a dimension: 16-bit floats instead of 32-bit."""
    train_rows: int = TRAIN_ROWS

    def __post_init__(self) -> None:
        if self.metric not in get_args(Metric):
            raise InvalidInput(f"metric must be one of {', '.join(get_args(Metric))}, got {self.metric!r}.")
        if self.index not in get_args(IndexKind):
            raise InvalidInput(f"index must be one of {', '.join(get_args(IndexKind))}, got {self.index!r}.")
        number = self.dimension
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (is_number and 1 <= number <= MAX_DIMENSION):
            raise InvalidInput(f"dimension must be a number from 1 to {MAX_DIMENSION}, got {number!r}.")
        rows = self.train_rows
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < LEAST_TRAIN_ROWS:
            raise InvalidInput(f"train_rows must be a number of at least {LEAST_TRAIN_ROWS}, got {rows!r}.")
        if self.half and number is None:
            raise InvalidInput("half needs a dimension; in a pyarrow schema use float16 instead.")

    def field(self, field: pa.Field) -> pa.Field:
        """The column with its vector type. Raises InvalidInput if it cannot hold vectors."""
        kind = field.type
        is_array = pa.types.is_list(kind) and pa.types.is_floating(kind.value_type)
        if self.dimension is not None and is_array:
            return field.with_type(pa.list_(pa.float16() if self.half else pa.float32(), self.dimension))
        if not is_vector(kind):
            advice = 'give its dimension: vector("cosine", dimension=384)' if is_array else None
            raise InvalidInput(
                f"Column {field.name!r} has type {kind}; a vector column must be a fixed-size list of float16 "
                "or float32.",
                advice=advice,
            )
        if self.dimension not in (None, kind.list_size):
            raise InvalidInput(
                f"Column {field.name!r} has vectors of dimension {kind.list_size}, not {self.dimension}."
            )
        return field


def vector(
    metric: Metric = "l2",
    *,
    index: IndexKind = "IVF_PQ",
    dimension: int | None = None,
    half: bool = False,
    train_rows: int = TRAIN_ROWS,
) -> Vector:
    """A vector column for `create_table(vector={"embedding": vector("cosine")})`. Raises InvalidInput.

    The base gets an index of type `index` when `train_rows` of its rows have a vector; an index trained with fewer rows
    finds less. `dimension` is for a schema in DDL, whose `array<float>` becomes vectors of that dimension, with 16-bit
    floats if `half`.
    """
    return Vector(metric, index, dimension, half, train_rows)


def is_vector(kind: pa.DataType) -> bool:
    """True if a column of this type can hold vectors."""
    return bool(
        pa.types.is_fixed_size_list(kind)
        and kind.value_type in (pa.float16(), pa.float32())
        and 1 <= kind.list_size <= MAX_DIMENSION
    )
