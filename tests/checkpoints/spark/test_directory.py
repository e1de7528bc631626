"""Checkpoint directories as Spark 4.2 wrote them, byte for byte where it matters."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from headgate.checkpoints.log.decisions import NewPartition
from headgate.checkpoints.log.records import OpaqueRange
from headgate.checkpoints.spark.directory import SparkCheckpoint, _for_s3fs
from headgate.connectors.objects import open_store
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound
from headgate.shards.wal.entry import SourceRange

META = '{"batchWatermarkMs":0,"batchTimestampMs":1794797264108,"conf":{"spark.sql.shuffle.partitions":"1"}}'
R = SourceRange


def write(root: Path, **files: str | bytes) -> SparkCheckpoint:
    """Files by name, with __ for /; each with the checksum file that Hadoop puts beside it."""
    for name, content in {"metadata": '{"id":"85402470-b9f3-45e9-86aa-567a9fb14f58"}', **files}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        (path.parent / f".{path.name}.crc").write_bytes(b"crc\0\0\0\x02\0")
    return SparkCheckpoint(str(root))


def offsets(*lines: str, version: str = "v1") -> str:
    return "\n".join([version, META, *lines])


def asked(topic: str, partition: int) -> int:
    return 1000 + partition


def unasked(topic: str, partition: int) -> int:
    raise AssertionError(f"Kafka was asked for {topic}/{partition}")


@pytest.fixture
def grown(tmp_path: Path) -> SparkCheckpoint:
    """One Kafka source with two topics; a partition came with batch 2."""
    return write(
        tmp_path,
        sources__0__0=b'\0v1\n{"other":{"0":0},"orders":{"0":0,"1":3}}',
        offsets__0=offsets('{"other":{"0":0},"orders":{"0":4,"1":3}}'),
        offsets__1=offsets('{"other":{"0":0},"orders":{"0":10,"1":5}}'),
        offsets__2=offsets('{"other":{"0":2},"orders":{"0":10,"1":5,"2":3}}'),
        commits__0='v1\n{"nextBatchWatermarkMs":0}',
        commits__1='v1\n{"nextBatchWatermarkMs":0}',
    )


def test_the_query_id_is_read(grown: SparkCheckpoint) -> None:
    assert grown.query_id() == "85402470-b9f3-45e9-86aa-567a9fb14f58"


def test_the_first_batch_starts_where_the_source_began(grown: SparkCheckpoint) -> None:
    assert grown.ranges(0, unasked) == (R("orders", 0, 0, 4), R("orders", 1, 3, 3), R("other", 0, 0, 0))


def test_a_batch_starts_where_the_one_before_ended(grown: SparkCheckpoint) -> None:
    assert grown.ranges(1, unasked) == (R("orders", 0, 4, 10), R("orders", 1, 3, 5), R("other", 0, 0, 0))


def test_a_partition_that_appears_starts_at_its_earliest_offset(grown: SparkCheckpoint) -> None:
    assert grown.sources(2).new == (NewPartition("orders", 2, 3),)
    assert grown.ranges(2, lambda topic, partition: 1) == (
        R("orders", 0, 10, 10),
        R("orders", 1, 5, 5),
        R("orders", 2, 1, 3),
        R("other", 0, 0, 2),
    )


def test_batches_that_are_planned_and_done_are_listed_without_checksum_files(grown: SparkCheckpoint) -> None:
    assert grown.planned() == (0, 1, 2)
    assert grown.commits() == (0, 1)


def test_a_checkpoint_of_a_query_that_never_finished_a_batch_has_no_commits(tmp_path: Path) -> None:
    assert write(tmp_path).commits() == ()


@pytest.mark.parametrize("what", ["query_id", "offsets", "sources"])
def test_what_is_missing_is_named(tmp_path: Path, what: str) -> None:
    checkpoint = SparkCheckpoint(str(tmp_path / "nowhere"))
    with pytest.raises(NotFound, match=r"has no (metadata|offsets/5|offsets/4)") as error:
        getattr(checkpoint, what)(*([] if what == "query_id" else [5]))
    assert error.value.detail["checkpoint"] == str(tmp_path / "nowhere")


def test_a_source_without_its_beginning_is_named(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, offsets__0=offsets('{"t":{"0":4}}'))
    with pytest.raises(NotFound, match="sources/0/0"):
        checkpoint.ranges(0, unasked)


def test_several_sources_are_kept_apart(tmp_path: Path) -> None:
    checkpoint = write(
        tmp_path,
        sources__0__0=b'\0v1\n{"orders":{"0":0}}',
        sources__1__0=b'\0v1\n{"other":{"0":7}}',
        sources__2__0="v1\n1794797263632",
        offsets__0=offsets('{"orders":{"0":3}}', "-", "0"),
        offsets__1=offsets('{"orders":{"0":6}}', '{"other":{"0":9}}', "4"),
    )
    first, second = checkpoint.sources(0), checkpoint.sources(1)
    assert first.ranges == (R("orders", 0, 0, 3),)
    assert first.opaque == (OpaqueRange("2", None, "0"),)
    assert second.ranges == (R("orders", 0, 3, 6), R("other", 0, 7, 9)), (
        "a source with no offset yet starts where it began"
    )
    assert second.opaque == (OpaqueRange("2", "0", "4"),)


def test_a_source_that_is_named_in_the_second_version_is_read(tmp_path: Path) -> None:
    checkpoint = write(
        tmp_path,
        sources__0__0=b'\0v1\n{"a:b":{"0":0}}',
        offsets__0=offsets("1:0", '0:{"a:b":{"0":5}}', version="v2"),
        offsets__1=offsets('0:{"a:b":{"0":8}}', '1:{"logOffset":1}', "two:-", version="v2"),
    )
    assert checkpoint.sources(0).ranges == (R("a:b", 0, 0, 5),)
    assert checkpoint.sources(1).ranges == (R("a:b", 0, 5, 8),)
    assert checkpoint.sources(1).opaque == (OpaqueRange("1", "0", '{"logOffset":1}'),)
    assert [o.source for o in checkpoint.offsets(1)] == ["0", "1", "two"]


@pytest.mark.parametrize(
    "text",
    ["4", '{"logOffset":0}', '{"sourceVersion":1,"index":{"a":"b"}}', '{"t":{"x":1}}', '{"t":{"0":-1}}', "not json"],
)
def test_a_source_that_is_not_kafkas_is_opaque(tmp_path: Path, text: str) -> None:
    sources = write(tmp_path, offsets__0=offsets(text)).sources(0)
    assert (sources.ranges, sources.opaque) == ((), (OpaqueRange("0", None, text),))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", Corrupt),
        (b"\xff\xfe", Corrupt),
        (b"v1\n" + META.encode(), Corrupt),
        (b"hello\nworld\n4", Corrupt),
        (f"v2\n{META}\n../x:4".encode(), Corrupt),
        (f"v3\n{META}\n4".encode(), InvalidInput),
    ],
    ids=["empty", "not text", "cut short", "no version", "a source that is a path", "a newer version"],
)
def test_a_file_that_cannot_be_understood_is_named(tmp_path: Path, content: bytes, error: type[HeadgateError]) -> None:
    with pytest.raises(error, match="offsets/0"):
        write(tmp_path, offsets__0=content).sources(0)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null"])
def test_a_damaged_query_id_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(Corrupt, match="metadata"):
        write(tmp_path, metadata=content).query_id()


def test_paths_are_taken_as_people_and_as_hadoop_write_them(tmp_path: Path) -> None:
    root = tmp_path / "with space%20"
    write(root, commits__3="v1\n{}")
    hadoop, person = f"file:{root}", f"file://{tmp_path}/with%20space%2520/"
    for uri in (str(root), f"{root}/", hadoop, person):
        assert SparkCheckpoint(uri).commits() == (3,), uri


def test_it_travels_to_workers(grown: SparkCheckpoint) -> None:
    grown.commits()
    assert pickle.loads(pickle.dumps(grown)).commits() == (0, 1)


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'nosuch'"):
        SparkCheckpoint("nosuch://a/b").commits()


def test_credentials_are_in_no_error() -> None:
    checkpoint = SparkCheckpoint("s3://key:secret@bucket/checkpoint")
    assert "secret" not in checkpoint.uri


def test_options_under_pylances_names_are_those_of_s3fs() -> None:
    given = {
        "aws_access_key_id": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "region": "r",
        "aws_endpoint": "http://e",
        "allow_http": "true",
    }
    assert _for_s3fs(given) == {
        "key": "k",
        "secret": "s",
        "endpoint_url": "http://e",
        "client_kwargs": {"region_name": "r"},
    }
    assert _for_s3fs({"key": "k", "secret": "s", "endpoint_url": "e"}) == {
        "key": "k",
        "secret": "s",
        "endpoint_url": "e",
    }
    # s3fs only reads here, and S3 decrypts by itself; `rebuild` writes with our own client.
    assert _for_s3fs({"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": "k"}) == {}


@pytest.mark.s3
def test_a_checkpoint_on_s3_is_read(s3_options: dict[str, str], bucket: str) -> None:
    folder = open_store(f"s3://{bucket}/a/checkpoint", s3_options)
    for name, body in {
        "metadata": b'{"id":"q"}',
        "sources/0/0": b'\0v1\n{"t":{"0":1}}',
        "offsets/0": offsets('{"t":{"0":4}}').encode(),
        "commits/0": b"v1\n{}",
    }.items():
        folder.put_if_absent(name, body)
    checkpoint = SparkCheckpoint(f"s3a://{bucket}/a/checkpoint", s3_options)
    assert checkpoint.query_id() == "q"
    assert checkpoint.ranges(0, unasked) == (R("t", 0, 1, 4),)
    assert checkpoint.commits() == (0,)
    folder.put_if_absent("commits/1", b"v1\n{}")
    assert checkpoint.commits() == (0, 1), "listings are fresh"
    with pytest.raises(NotFound):
        checkpoint.offsets(9)
