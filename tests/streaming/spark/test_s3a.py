"""What lets a Spark keep its checkpoint on S3: settings out of options and environment, jars when asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.connectors.jars.lists import JarsMissing
from headgate.spark.versions import spark_line
from headgate.streaming.spark.s3a import reaches, s3a_settings


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


def below(settings: dict[str, str]) -> dict[str, str]:
    return {name.removeprefix("spark.hadoop.fs.s3a."): value for name, value in settings.items()}


def test_options_come_before_the_environment_and_those_of_the_wal_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3a_settings() == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://there:9000")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "left-where-it-is")
    there = {"path.style.access": "true", "connection.ssl.enabled": "false", "endpoint.region": "eu-west-1"}
    assert below(s3a_settings()) == {"endpoint": "http://there:9000", **there}
    given = {
        "aws_endpoint": "https://here",
        "ACCESS_KEY_ID": "k",
        "wal.aws_endpoint": "http://wal",
        "allow_http": "true",
    }
    here = {"endpoint": "https://here", "access.key": "k", **there, "connection.ssl.enabled": "true"}
    assert below(s3a_settings(given)) == here


def test_keys_with_a_token_have_the_provider_that_reads_it() -> None:
    settings = below(s3a_settings({"access_key_id": "k", "secret_access_key": "s", "session_token": "t"}))
    assert (settings["access.key"], settings["secret.key"], settings["session.token"]) == ("k", "s", "t")
    assert settings["aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")


def test_what_is_encrypted_by_the_server_is_so_in_sparks_checkpoint_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "arn:aws:kms:eu-west-1:1:key/2"
    given = {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": key, "aws_sse_bucket_key_enabled": "true"}
    assert below(s3a_settings(given)) == {"encryption.algorithm": "SSE-KMS", "encryption.key": key}
    assert below(s3a_settings({"server_side_encryption": "aws:kms"})) == {"encryption.algorithm": "SSE-KMS"}
    twice = below(s3a_settings({**given, "aws_server_side_encryption": "aws:kms:dsse"}))
    assert twice == {"encryption.algorithm": "DSSE-KMS", "encryption.key": key}
    assert below(s3a_settings({"SERVER_SIDE_ENCRYPTION": "AES256"})) == {"encryption.algorithm": "AES256"}
    assert s3a_settings({"wal.aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": key}) == {}
    # Spark would show a key that is the secret itself.
    assert s3a_settings({"aws_server_side_encryption": "sse-c", "aws_sse_customer_key_base64": "c2VjcmV0"}) == {}
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
    monkeypatch.setenv("AWS_SSE_KMS_KEY_ID", "of the environment")
    assert below(s3a_settings()) == {"encryption.algorithm": "SSE-KMS", "encryption.key": "of the environment"}
    assert below(s3a_settings(given))["encryption.key"] == key
    assert below(s3a_settings({"aws_server_side_encryption": "AES256"})) == {"encryption.algorithm": "AES256"}


def test_jars_are_wanted_for_s3a_alone_and_where_they_are_missing_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))
    assert reaches("/state/orders") == reaches("file:///state") == reaches("s3://bucket/state") == {}
    with pytest.raises(JarsMissing, match=r"jars fetch s3a"):
        reaches("s3a://bucket/state")
    jar = tmp_path / "jars" / f"s3a-{spark_line()}" / "hadoop-aws-1.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    found = reaches("S3A://bucket/state")
    assert found.pop("spark.jars") == str(jar)
    assert below(found) == {"directory.marker.retention": "keep"}
