"""headgate.nearest_df: what a search by vector finds as a DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headgate
from tests.search.vectors.histories import make_table
from tests.search.vectors.test_searcher import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_frame_holds_the_nearest_in_types_that_spark_has(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", dimension=2, half=True)
    with table.writer("single") as writer:
        writer.put(rows(table, {1: [1, 0], 2: [2, 0], 3: None}))
    frame = headgate.nearest_df(spark, table.uri, [0, 0], k=5)
    found = [(row.id, row.embedding, row._distance) for row in frame.orderBy("_distance").collect()]
    assert found == [(1, [1.0, 0.0], 1.0), (2, [2.0, 0.0], 4.0)]
    assert headgate.nearest_df(spark, table, [0, 0], columns="id", filter="id > 5").columns == ["id", "_distance"]
