"""headgate.search_df: the hits as a DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headgate
from headgate.errors import InvalidInput
from tests.search.query.histories import make_table, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_frame_holds_the_hits_of_one_search(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    with table.writer("single") as writer:
        writer.put(rows([(1, "red apple"), (2, "red"), (3, "green")]))
        frame = headgate.search_df(spark, table.uri, "red", k=5)
        writer.put(rows([(4, "red")]))
    expected = [(hit["id"], hit["note"], hit["_score"]) for hit in table.search("red", filter="id < 4").to_pylist()]
    found = [(row.id, row.note, row._score) for row in frame.orderBy(frame._score.desc()).collect()]
    assert (
        [(i, note) for i, note, _ in found] == [(i, note) for i, note, _ in expected] == [(2, "red"), (1, "red apple")]
    )
    joined = frame.join(spark.createDataFrame([(1, "x")], "id long, other string"), "id").collect()
    assert [(row.id, row.other) for row in joined] == [(1, "x")]
    chosen = headgate.search_df(spark, table.uri, "red apple", match="all", columns=["id"], filter="size >= 0")
    assert chosen.columns == ["id", "_score"]
    assert [row.id for row in chosen.collect()] == [1]
    assert headgate.search_df(spark, table.uri, "nowhere").count() == 0
    with pytest.raises(InvalidInput):
        headgate.search_df(spark, table.uri, "red", column="size")
