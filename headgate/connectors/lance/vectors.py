"""Models of vector indexes of a Lance dataset: trains them, or reads them from a segment.

A *model* holds the centroids of the partitions and, for IVF_PQ, the codebook. Segments are built with it. Native stores
it in each segment, also in one that it rewrote, so any segment will do. Imports pylance only when called.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.lance.errors import native_error, reading
from headgate.connectors.lance.fts.partition import open_file
from headgate.connectors.lance.protobuf import message_classes
from headgate.connectors.objects import ObjectStore, scrubbed, without_secrets
from headgate.errors import Corrupt, InvalidInput, Transient

CODES = 256
"""Codes of a codebook: each part of a vector is stored as the nearest code."""

SAMPLE = 256
"""Sampled vectors per centroid, native's default; fewer if there are fewer vectors."""

SAMPLE_BYTES = 512 << 20
"""Maximum bytes of a sample, but at least LEAST_SAMPLE vectors per centroid."""

LEAST_SAMPLE = 40

GRAPH_ROWS = 1 << 20
"""Rows per partition of IVF_HNSW_SQ: the graph searches many rows quickly."""


@dataclass(frozen=True, eq=False)
class Model:
    """The centroids, and for IVF_PQ the codebook, that all segments of an index share."""

    centroids: pa.FixedSizeListArray
    codebook: pa.FixedSizeListArray | None


def partitions_for(index_type: str, vectors: int) -> int:
    """The number of partitions for so many vectors."""
    return max(1, vectors // GRAPH_ROWS if "HNSW" in index_type else math.isqrt(vectors))


def parts_of(dimension: int) -> int:
    """The number of sub-vectors with a code each: at least eight if the dimension allows, of at most eight numbers
    each, and a divisor of the dimension.
    """
    least = max(-(-dimension // 8), min(dimension, 8))
    return next(parts for parts in range(least, dimension + 1) if dimension % parts == 0)


def count_vectors(store: ObjectStore, version: int, column: str) -> int:
    """The number of rows of one version that have a vector. Reads the column if it is nullable."""
    dataset = open_dataset(store, version=version)
    if not dataset.schema.field(column).nullable:
        return int(dataset.count_rows())
    with reading("A Lance dataset could not be read.", uri=dataset.uri):
        return int(dataset.count_rows(f"`{column}` IS NOT NULL"))


def train(store: ObjectStore, version: int, column: str, metric: str, index_type: str) -> Model:
    """Train a model with a sample of one version's vectors. Raises InvalidInput if too few are valid, Transient."""
    from lance.indices import IndicesBuilder

    vectors = count_vectors(store, version, column)
    dataset = open_dataset(store, version=version)
    dimension = dataset.schema.field(column).type.list_size
    count = partitions_for(index_type, vectors)
    affordable = max(LEAST_SAMPLE, SAMPLE_BYTES // (4 * dimension * count))
    sample = max(2, min(SAMPLE, vectors // count, affordable))
    try:
        builder = IndicesBuilder(dataset, column)
        ivf = builder.train_ivf(count, distance_type=metric, sample_rate=sample)
        if "PQ" not in index_type:
            return Model(ivf.centroids, None)
        codes = max(2, min(SAMPLE, vectors // CODES))
        return Model(ivf.centroids, builder.train_pq(ivf, parts_of(dimension), sample_rate=codes).codebook)
    except (OSError, ValueError, RuntimeError) as error:
        reason = scrubbed(str(error))[:300]
        if "Not enough rows" in reason or "cannot train" in reason:
            raise InvalidInput(
                f"Too few vectors of column {column!r} can be measured to train an index: most are null, zeros or NaN.",
                table=store.uri,
                advice="rows are found without an index, one by one; write vectors that are numbers",
            ) from without_secrets(error)
        what = f"Lance could not train an index of column {column!r}: {reason}"
        raise native_error(what, error, Transient, table=store.uri) from without_secrets(error)


def build_arguments(index_type: str, metric: str, model: Model) -> dict[str, Any]:
    """Native's arguments for building a segment with a model."""
    chosen: dict[str, Any] = {"metric": metric, "ivf_centroids": model.centroids}
    chosen["num_partitions"] = len(model.centroids)
    if "PQ" in index_type:
        chosen |= {"pq_codebook": model.codebook, "num_sub_vectors": parts_of(model.centroids.type.list_size)}
    return chosen


def read_model(uri: str, options: Mapping[str, str]) -> Model:
    """The model of the segment in a folder. Raises DataLoss if its files are missing, Corrupt."""
    ivf = _ivf(uri, options)
    centroids = _numbers(ivf.centroids_tensor, uri)
    auxiliary = open_file(f"{uri}/auxiliary.idx", options, None)
    (stored,) = json.loads(auxiliary.metadata().schema.metadata[b"storage_metadata"])
    place = json.loads(stored).get("codebook_position")
    if place is None:
        return Model(centroids, None)
    return Model(centroids, _numbers(_parsed(_Tensor, auxiliary.read_global_buffer(place), uri), uri))


def partition_count(uri: str, options: Mapping[str, str]) -> int:
    """The number of partitions of the segment in a folder. Raises as `read_model` does."""
    return int(_ivf(uri, options).centroids_tensor.shape[0])


def _ivf(uri: str, options: Mapping[str, str]) -> Any:
    file = open_file(f"{uri}/index.idx", options, None)
    place = (file.metadata().schema.metadata or {}).get(b"lance:ivf", b"")
    if not place.isdigit():
        raise Corrupt("A file of a vector index does not say where its centroids are.", file=uri)
    found = _parsed(_Ivf, file.read_global_buffer(int(place)), uri)
    if len(found.centroids_tensor.shape) != 2:
        raise Corrupt("A file of a vector index has no centroids.", file=uri)
    return found


def _parsed(kind: Any, data: bytes, uri: str) -> Any:
    message = kind()
    try:
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise Corrupt("A file of a vector index cannot be read.", file=uri) from error
    return message


def _numbers(tensor: Any, uri: str) -> pa.FixedSizeListArray:
    kinds: dict[int, Any] = {1: np.float16, 2: np.float32, 3: np.float64}
    if tensor.data_type not in kinds:
        raise Corrupt(f"A file of a vector index has numbers of kind {tensor.data_type}.", file=uri)
    numbers = np.frombuffer(tensor.data, kinds[tensor.data_type])
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), tensor.shape[-1])


_messages = message_classes(
    {"Tensor": "data_type=1:u32 shape=2:u32* data=3:bytes", "Ivf": "centroids_tensor=4:Tensor"},
)
_Tensor, _Ivf = _messages["Tensor"], _messages["Ivf"]
