"""Schemas as people write them become the Arrow schema that Spark itself would make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from headgate.errors import InvalidInput
from headgate.streaming.decode import api as decode
from headgate.table.create import create_table
from headgate.table.ddl import arrow_schema

DDL = """id BIGINT NOT NULL COMMENT 'the key, it''s unique', `odd ``name` string, t tinyint, s smallint, i: int,
    f float, d double, b boolean, bin binary, day date, at timestamp, local timestamp_ntz, price decimal( 10 , 2 ),
    whole decimal, five decimal(5), tags array<string>, attributes MAP<string, array<int>>,
    address struct<street: string NOT NULL, `zip code`: int, at struct<x:double,y:double>>"""

STRUCT_TYPE = spark.StructType(
    [
        spark.StructField("id", spark.LongType(), nullable=False),
        spark.StructField("odd `name", spark.StringType()),
        spark.StructField("t", spark.ByteType()),
        spark.StructField("s", spark.ShortType()),
        spark.StructField("i", spark.IntegerType()),
        spark.StructField("f", spark.FloatType()),
        spark.StructField("d", spark.DoubleType()),
        spark.StructField("b", spark.BooleanType()),
        spark.StructField("bin", spark.BinaryType()),
        spark.StructField("day", spark.DateType()),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("local", spark.TimestampNTZType()),
        spark.StructField("price", spark.DecimalType(10, 2)),
        spark.StructField("whole", spark.DecimalType(10, 0)),
        spark.StructField("five", spark.DecimalType(5, 0)),
        spark.StructField("tags", spark.ArrayType(spark.StringType())),
        spark.StructField("attributes", spark.MapType(spark.StringType(), spark.ArrayType(spark.IntegerType()))),
        spark.StructField(
            "address",
            spark.StructType(
                [
                    spark.StructField("street", spark.StringType(), nullable=False),
                    spark.StructField("zip code", spark.IntegerType()),
                    spark.StructField(
                        "at",
                        spark.StructType(
                            [spark.StructField("x", spark.DoubleType()), spark.StructField("y", spark.DoubleType())]
                        ),
                    ),
                ]
            ),
        ),
    ]
)

ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("odd `name", pa.string()),
        pa.field("t", pa.int8()),
        pa.field("s", pa.int16()),
        pa.field("i", pa.int32()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.float64()),
        pa.field("b", pa.bool_()),
        pa.field("bin", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("whole", pa.decimal128(10, 0)),
        pa.field("five", pa.decimal128(5, 0)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("attributes", pa.map_(pa.string(), pa.list_(pa.int32()))),
        pa.field(
            "address",
            pa.struct(
                [
                    pa.field("street", pa.string(), nullable=False),
                    pa.field("zip code", pa.int32()),
                    pa.field("at", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
                ]
            ),
        ),
    ]
)


@pytest.mark.parametrize("schema", [DDL, f"struct<{DDL}>", STRUCT_TYPE, ARROW], ids=["ddl", "struct", "spark", "arrow"])
def test_every_way_to_write_a_schema_gives_the_same_columns(schema: object) -> None:
    assert decode.json(schema).schema == ARROW
    assert all(arrow_schema(schema).field(i).nullable == ARROW.field(i).nullable for i in range(len(ARROW)))


@pytest.mark.parametrize("word", ["struct", "not", "comment", "int", "map"])
def test_a_column_may_be_named_like_a_keyword(word: str) -> None:
    assert arrow_schema(f"{word} int NOT NULL, b string") == pa.schema(
        [pa.field(word, pa.int32(), nullable=False), ("b", pa.string())]
    )


@pytest.mark.parametrize(
    ("ddl", "error"),
    [
        ("", "character 0: expected a column name, found its end"),
        ("id", "expected a type"),
        ("id int,", "character 7: expected a column name"),
        ("id bigit", "character 3.*did you mean 'bigint'"),
        ("id quaternion", "a type, one of boolean"),
        ("id int NOT", "expected 'null'"),
        ("id int string", "character 7: expected the end, found 'string'"),
        ("a array<int", "expected '>', found its end"),
        ("a array<int>>", "expected the end"),
        ("m map<string>", "expected ','"),
        ("d decimal(39, 2)", "1 to 38 digits"),
        ("d decimal(5, 6)", "1 to 38 digits"),
        ("d decimal(x)", "expected a number"),
        ("c varchar(10)", "expected 'string'"),
        ("a int; b int", "character 5"),
        ("c int COMMENT x", "the comment's text"),
        ("v variant", "expected a type"),
    ],
)
def test_a_ddl_that_cannot_be_read_is_refused_with_the_place(ddl: str, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        decode.json(ddl)


def test_other_schemas_are_refused() -> None:
    with pytest.raises(InvalidInput, match="got dict"):
        decode.json({"id": "int"})
    with pytest.raises(InvalidInput, match="VARIANT"):
        decode.json(spark.StructType([spark.StructField("v", spark.VariantType())]))
    with pytest.raises(InvalidInput, match="'d'"):
        decode.json(spark.StructType([spark.StructField("d", spark.DayTimeIntervalType())]))


def test_a_schema_without_spark_types_needs_no_pyspark() -> None:
    code = "import sys; from headgate import decode; decode.json('a int'); assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_ddl_means_what_spark_says_it_means() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark's parser needs a session.
    assert to_arrow_schema(spark.StructType.fromDDL(DDL), timezone="UTC") == arrow_schema(DDL)  # type: ignore[arg-type]


def test_a_lone_surrogate_in_a_column_name_is_invalid_input(tmp_path: Path) -> None:
    name = "a\ud800"
    table = create_table(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    for call in (
        lambda: arrow_schema(f"`{name}` bigint"),
        lambda: arrow_schema(f"id bigint, s struct<`{name}`: string>"),
        lambda: decode.raw(name),
        lambda: table.rename_column("id", name),
    ):
        with pytest.raises(InvalidInput, match="not valid Unicode"):
            call()
