"""Vector columns: named at creation, kept in the record, and held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import headgate
from headgate.cli import main
from headgate.errors import InvalidInput
from headgate.records import decode, encode
from headgate.shards.home.record import TableRecord, record_key
from headgate.shards.vectors import VectorColumn

DDL = "id bigint not null, embedding array<float>"


def make(path: Path, **changed: Any) -> headgate.Table:
    arguments: dict[str, Any] = {"vector": {"embedding": headgate.vector("cosine", dimension=4)}} | changed
    return headgate.create_table(str(path), DDL, primary_key="id", **arguments)


@pytest.mark.parametrize(("half", "kind"), [(False, pa.float32()), (True, pa.float16())])
def test_ddl_s_arrays_become_vectors_and_the_table_knows_them_when_it_is_opened(
    tmp_path: Path, half: bool, kind: pa.DataType
) -> None:
    vector = headgate.vector("dot", index="IVF_HNSW_SQ", dimension=4, half=half)
    made = make(tmp_path / "t", vector={"embedding": vector})
    assert made.schema.field("embedding").type == pa.list_(kind, 4)
    assert headgate.open_table(made.uri).vectors == (VectorColumn("embedding", "dot", "IVF_HNSW_SQ"),)
    assert "vector={'embedding': 'dot'}" in repr(made)
    assert "<td>vector</td>" in made._repr_html_()
    assert made.clone(str(tmp_path / "clone")).vectors == made.vectors


def test_a_schema_of_pyarrow_says_the_dimension_itself(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("embedding", pa.list_(pa.float16(), 3))])
    made = headgate.create_table(str(tmp_path / "t"), schema, vector={"embedding": headgate.vector()})
    assert made.schema.field("embedding").type == pa.list_(pa.float16(), 3)
    assert made.vectors == (VectorColumn("embedding", "l2", "IVF_PQ"),)


def test_the_record_of_a_table_without_vectors_is_that_of_earlier_releases(tmp_path: Path) -> None:
    made = headgate.create_table(str(tmp_path / "t"), "id bigint")
    data = made.home.store.get(record_key(made.table_id))
    assert b"vectors" not in bytes(data)
    assert decode(TableRecord, data, "It") == made.record
    with_vectors = make(tmp_path / "u").record
    assert decode(TableRecord, encode(with_vectors), "It") == with_vectors


@pytest.mark.parametrize(
    ("vector", "said"),
    [
        ({"embeding": headgate.vector()}, "did you mean 'embedding'"),
        ({"id": headgate.vector()}, "fixed-size list"),
        ({"embedding": headgate.vector()}, r"dimension=384"),
        ({"embedding": "cosine"}, r"headgate.vector"),
    ],
)
def test_what_cannot_be_a_vector_column_is_refused_and_nothing_is_written(
    tmp_path: Path, vector: Any, said: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        make(tmp_path / "t", vector=vector)
    assert __import__("re").search(said, f"{raised.value} {raised.value.advice}")
    assert not (tmp_path / "t").exists() or not list((tmp_path / "t").rglob("*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"metric": "euclid"}, "metric must be one of"),
        ({"index": "FLAT"}, "index must be one of"),
        ({"dimension": 0}, "dimension must be"),
        ({"dimension": True}, "dimension must be"),
        ({"half": True}, "half needs a dimension"),
    ],
)
def test_a_vector_that_cannot_be_is_refused_when_it_is_said(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        headgate.vector(**arguments)


def test_exist_ok_compares_vector_columns(tmp_path: Path) -> None:
    made = make(tmp_path / "t")
    assert make(tmp_path / "t", exist_ok=True).table_id == made.table_id
    with pytest.raises(InvalidInput, match="embedding cosine IVF_PQ, not embedding l2 IVF_PQ"):
        make(tmp_path / "t", exist_ok=True, vector={"embedding": headgate.vector("l2", dimension=4)})


def test_a_vector_column_is_neither_renamed_nor_dropped(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    for change in (lambda: table.rename_column("embedding", "other"), lambda: table.drop_column("embedding")):
        with pytest.raises(InvalidInput, match="embedding"):
            change()


def call(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments), prog_name="headgate", catch_exceptions=False)


def test_a_command_makes_it_and_shows_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    done = call("table", "create", uri, "--schema", DDL, "--vector", "embedding=cosine,4,half", "--output", "json")
    assert done.exit_code == 0, done.output
    shown = json.loads(call("table", "show", uri, "--output", "json").stdout)
    assert shown["vectors"] == {"embedding": {"metric": "cosine", "index": "IVF_PQ"}}
    assert shown["columns"][1]["type"] == "fixed_size_list<item: halffloat>[4]"
    for wrong in ("embedding", "embedding=cosine,x", "=cosine"):
        refused = call("table", "create", str(tmp_path / "u"), "--schema", DDL, "--vector", wrong)
        assert refused.exit_code != 0
        assert "vector" in refused.stderr
