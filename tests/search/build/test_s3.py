"""On S3: parts are copied inside the server, and native searches what was committed there."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from headgate.connectors.lance.index import look_index
from headgate.connectors.objects import open_store
from headgate.search.build.build import build_index
from headgate.search.build.plan import Limits
from headgate.search.finalize.segment import SUFFIXES
from tests.support.indexes import NAME, QUERIES, texts

pytestmark = pytest.mark.s3


def test_a_build_copies_inside_the_server_and_native_searches_it(
    s3_options: dict[str, str], bucket: str, tmp_path: Path
) -> None:
    uri = f"s3://{bucket}/tables/orders"
    lance.write_dataset(texts(160), uri, max_rows_per_file=40, storage_options=s3_options)
    alone = lance.write_dataset(texts(160), str(tmp_path / "alone"))
    alone.create_scalar_index("note", "INVERTED")
    expected = {query: hits(alone, query) for query in QUERIES}
    store = open_store(uri, s3_options)
    built = build_index(store, "note", NAME, limits=Limits(tasks=2, task_rows=1))
    assert (built.segments, built.rows) == (2, 160)
    told = store.operations()
    assert told["copy"] == 2 * (len(SUFFIXES) + 1), "each file of a part, and the marker"
    assert told["put"] == 2 * 3, "the marker is all that is sent of each, beside its intent and outcome"
    dataset = lance.dataset(uri, storage_options=s3_options)
    assert {query: hits(dataset, query) for query in QUERIES} == expected
    left = [info.key for info in store.list("_indices/") if "/staging/" in info.key]
    assert left == []
    # Several become one, by copying.
    small = Limits(max_segments=1, segment_rows=100)
    store.reset_operations()
    assert build_index(store, "note", NAME, limits=small).segments == 1
    assert store.operations()["copy"] == 2 * 2 * len(SUFFIXES) + 1
    assert len(look_index(store, "note", NAME).segments) == 1
    dataset = lance.dataset(uri, storage_options=s3_options)
    assert {query: hits(dataset, query) for query in QUERIES} == expected


def hits(dataset: lance.LanceDataset, query: str) -> list[int]:
    found = dataset.scanner(columns=["id"], full_text_query=query, limit=1000).to_table()
    return sorted(found.column("id").to_pylist())
