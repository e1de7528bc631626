"""Credentials: by environment, profile, a program of a profile, or options; never in anything written or printed."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

from headgate.cli import main
from headgate.connectors.lance.dataset import look
from headgate.connectors.objects import open_store, scrubbed
from headgate.connectors.objects.s3.credentials import renewed_credentials
from headgate.errors import HeadgateError, InvalidInput, PermissionDenied
from headgate.table.create import create_table
from headgate.table.table import open_table
from tests.s3.recorded_s3 import recorded_s3
from tests.support.clones import DIRECT, streamed
from tests.support.scripted import scripted_s3
from tests.support.services import S3_SECRETS, create_bucket, s3_options_for
from tests.support.tables import claimed

pytestmark = [pytest.mark.s3, pytest.mark.real_s3]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
TOKEN = "the-session-token-of-this-test"

USE = """
import sys, pyarrow as pa, headgate
schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
table = headgate.create_table(sys.argv[1], schema)
with table.writer("single") as writer:
    writer.put(pa.record_batch({"id": [1]}, schema=schema))
    writer.flush_memtable()
print(headgate.open_table(sys.argv[1]).scan().read_all().num_rows)
"""


def clean_environment(s3_options: dict[str, str], home: Path) -> dict[str, str]:
    """The environment without anything of AWS, but for where the server is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    place = {"AWS_ENDPOINT": s3_options["aws_endpoint"], "AWS_ENDPOINT_URL": s3_options["aws_endpoint"]}
    return {**kept, **place, "AWS_ALLOW_HTTP": "true", "HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.mark.parametrize("way", ["environment", "profile", "program"])
def test_tables_are_made_and_read_with_credentials_from(
    way: str, bucket: str, s3_options: dict[str, str], tmp_path: Path
) -> None:
    key, secret = S3_SECRETS
    given = clean_environment(s3_options, tmp_path)
    aws = tmp_path / ".aws"
    aws.mkdir()
    if way == "environment":
        given |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"}
    elif way == "profile":
        (aws / "credentials").write_text(f"[lake]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
        (aws / "config").write_text("[profile lake]\nregion = us-east-1\n")
        given |= {"AWS_PROFILE": "lake"}
    else:
        answer = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret, "Expiration": "2099-01-01T00:00:00Z"}
        (tmp_path / "answer.json").write_text(json.dumps(answer))
        program = f"credential_process = cat {tmp_path / 'answer.json'}"
        (aws / "config").write_text(f"[profile lake]\nregion = us-east-1\n{program}\n")
        given |= {"AWS_PROFILE": "lake"}
    command = [sys.executable, "-c", USE, f"s3://{bucket}/t"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr[-2000:]


# -- profiles ------------------------------------------------------------------


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


@pytest.mark.parametrize("answer", ["no token", "an address that is not asked"])
def test_a_container_that_cannot_be_asked_or_understood_is_told_without_what_it_said(
    no_aws: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    class Container(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"AccessKeyId": "a-key", "SecretAccessKey": "a-secret"}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Container) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = "127.0.0.1" if answer == "no token" else "not-asked.invalid"
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://{where}:{server.server_port}/role")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "a-token")
        with pytest.raises(InvalidInput) as caught:
            renewed_credentials({})
        server.shutdown()
    shown = "".join(traceback.format_exception(caught.value))
    assert "Next:" in str(caught.value)
    assert not any(secret in shown for secret in ("a-secret", "a-token"))


def test_a_profile_gives_way_to_options_and_environment(no_aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert renewed_credentials({}) is None
    (no_aws / "credentials").write_text("[default]\naws_access_key_id = a-key\naws_secret_access_key = a-secret\n")
    found = renewed_credentials({})
    assert found is not None
    assert found()["access_key_id"] == "a-key"
    assert "a-secret" not in repr(found)
    assert scrubbed("it said a-secret") == "it said ***"
    assert renewed_credentials({"aws_access_key_id": "k"}) is None
    assert renewed_credentials({"aws_skip_signature": "true"}) is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    assert renewed_credentials({}) is None


def test_a_program_of_a_profile_is_asked_again_when_what_it_gave_has_ended(no_aws: Path, tmp_path: Path) -> None:
    answer = {"Version": 1, "AccessKeyId": "first", "SecretAccessKey": "s", "Expiration": "2001-01-01T00:00:00Z"}
    (tmp_path / "answer.json").write_text(json.dumps({**answer, "Expiration": "2099-01-01T00:00:00Z"}))
    (no_aws / "config").write_text(f"[profile lake]\ncredential_process = cat {tmp_path / 'answer.json'}\n")
    os.environ["AWS_PROFILE"] = "lake"
    try:
        found = renewed_credentials({})
        assert found is not None
        assert found()["access_key_id"] == "first"
        held = found._credentials
        held._expiry_time = held._expiry_time.replace(year=2001)
        (tmp_path / "answer.json").write_text(
            json.dumps({**answer, "AccessKeyId": "second", "Expiration": "2099-01-01T00:00:00Z"})
        )
        assert found()["access_key_id"] == "second"
    finally:
        del os.environ["AWS_PROFILE"]


@pytest.mark.usefixtures("no_aws")
def test_a_profile_that_is_not_there_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nowhere")
    with pytest.raises(InvalidInput, match="nowhere"):
        open_store("s3://bucket/t").head("k")


# -- nothing written, nothing printed ------------------------------------------


def working(bucket: str) -> Iterator[tuple[str, ...]]:
    """A whole life of a table on the command line."""
    uri = f"s3://{bucket}/t"
    yield "table", "create", f"s3://{bucket}/made", "--schema", "id bigint not null, note string"
    yield "table", "create", f"s3://{bucket}/wal", "--schema", "id bigint", "--wal-uri", f"s3://{bucket}/its-wal"
    for name in ("made", "wal", "t"):
        yield "table", "show", f"s3://{bucket}/{name}"
    yield "shard", "show", uri
    yield "status", uri
    yield "wal", "tail", uri, DIRECT
    yield "dead-letters", "show", uri
    yield "fsck", uri
    yield "checkpoint", "create", uri, "--name", "one"
    yield "checkpoint", "list", uri
    yield "checkpoint", "show", uri, "one"
    yield "clone", uri, f"s3://{bucket}/shallow"
    yield "clone", uri, f"s3://{bucket}/deep", "--deep", "--wal-uri", f"s3://{bucket}/deep-wal"
    yield "compact", uri, "--flush", "--apply"
    yield "index", "build", uri
    yield "index", "show", uri
    yield "search", uri, "direct"
    yield "shard", "release", uri, "--stream", "s", "--apply"
    yield "recover", uri, "--spark-checkpoint", f"s3://{bucket}/checkpoint"
    yield "recover", uri, "--spark-checkpoint", f"s3://{bucket}/checkpoint", "--apply"
    yield "checkpoint", "drop", uri, "one", "--apply"
    yield "gc", uri, "--min-age", "0s", "--nothing-else-runs", "--apply"


def failing(bucket: str) -> Iterator[tuple[str, ...]]:
    """Calls that cannot be."""
    uri = f"s3://{bucket}/t"
    yield "wal", "expire", uri, "--older-than", "5m"
    yield "table", "show", f"s3://{bucket}/nowhere"
    yield "table", "create", uri, "--schema", "id bigint"
    yield "table", "show", "s3://never-was/t"
    yield "table", "show", f"s3://{S3_SECRETS[0]}:{S3_SECRETS[1]}@{bucket}/t"
    yield "clone", uri, uri
    yield "checkpoint", "show", uri, "nothing"
    yield "table", "show", uri, "--storage-option", f"acces_key={S3_SECRETS[1]}"
    yield "table", "show", uri, "--storage-option", S3_SECRETS[1]


def stored(bucket: str, options: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    store = open_store(f"s3://{bucket}", options)
    for info in store.list(""):
        yield info.key, bytes(store.get(info.key))


@pytest.mark.parametrize("way", ["options", pytest.param("environment", marks=pytest.mark.deep)])
def test_a_whole_life_on_the_command_line_writes_and_prints_no_credential(
    way: str,
    bucket: str,
    s3_options: dict[str, str],
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)  # at DEBUG botocore prints the headers that it sends
    streamed(f"s3://{bucket}/t", storage_options=s3_options, full_text=("note",))
    given = [part for name, value in s3_options.items() for part in ("--storage-option", f"{name}={value}")]
    if way == "environment":
        request.getfixturevalue("s3_environment")
        given = []
    shown = []
    expected = [*((one, True) for one in working(bucket)), *((one, False) for one in failing(bucket))]
    for number, (command, works) in enumerate(expected):
        output = ["--output", "json"] if number % 2 else []
        done = CliRunner().invoke(main, [*command, *given, *output], prog_name="headgate", catch_exceptions=False)
        shown.append(done.output + done.stderr)
        assert (done.exit_code == 0) == works, (command, done.output)
    told = capfd.readouterr()
    shown += [told.out, told.err, caplog.text]
    for secret in S3_SECRETS:
        assert [text for text in shown if secret in text] == []
        assert [key for key, data in stored(bucket, s3_options) if secret.encode() in data] == []
    table = open_table(f"s3://{bucket}/t", storage_options=s3_options)
    for one in (table, table.home, table.home.store, table.record, claimed(table)):
        assert not any(secret in repr(one) + str(one) for secret in S3_SECRETS)


@contextmanager
def refusing(status: int) -> Iterator[dict[str, str]]:
    """A server that repeats every credential in each of its refusals; the options that reach it."""
    with scripted_s3(**{verb: [status] * 999 for verb in ("PUT", "GET", "HEAD", "DELETE")}) as server:
        options = {**s3_options_for(server.endpoint), "aws_session_token": TOKEN}
        server.error_text = " ".join(options.values())
        yield options


ASKS: dict[str, Callable[[dict[str, str]], object]] = {
    "look": lambda options: look("s3://bucket/t", options),
    "open": lambda options: open_table("s3://bucket/t", storage_options=options),
    "create": lambda options: create_table("s3://bucket/t", SCHEMA, storage_options=options),
    "sent": lambda options: pickle.loads(pickle.dumps(open_store("s3://bucket/t", options))).get("k"),
}


@pytest.mark.parametrize("ask", ASKS)
def test_a_server_that_repeats_credentials_is_not_repeated(ask: str) -> None:
    with refusing(403) as options, pytest.raises(HeadgateError) as caught:
        ASKS[ask](options)
    shown = "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value, PermissionDenied)
    for secret in (*S3_SECRETS, TOKEN):
        assert secret not in shown


def test_a_dataset_that_cannot_be_opened_shows_no_credential(bucket: str, s3_options: dict[str, str]) -> None:
    uri = f"s3://{bucket}/t"
    lance.write_dataset(pa.table({"x": [1]}), uri, storage_options=s3_options)
    store = open_store(uri, s3_options)
    (manifest,) = [info.key for info in store.list("_versions/") if info.key.endswith(".manifest")]
    store.put_overwrite(manifest, b" ".join(secret.encode() for secret in S3_SECRETS))
    with pytest.raises(HeadgateError) as caught:
        look(uri, s3_options)
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(secret in shown for secret in S3_SECRETS)


# -- encryption ----------------------------------------------------------------


def test_options_of_sse_kms_go_along_with_every_put() -> None:
    wanted = {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "arn:aws:kms:eu-west-1:1:key/2",
        "x-amz-server-side-encryption-bucket-key-enabled": "true",
    }
    with recorded_s3() as server:
        here, there = f"sse-{uuid.uuid4().hex}", f"sse-{uuid.uuid4().hex}"
        create_bucket(server.endpoint, here)
        create_bucket(server.endpoint, there)
        made = len(server.requests)
        options = {
            **s3_options_for(server.endpoint),
            "aws_server_side_encryption": "aws:kms",
            "aws_sse_kms_key_id": wanted["x-amz-server-side-encryption-aws-kms-key-id"],
            "aws_sse_bucket_key_enabled": True,
        }
        store = open_store(f"s3://{here}/t", options)
        store.put_if_absent("a", b"body")
        store.put_overwrite("b", b"body")
        store.copy("a", "c")
        assert server.requests[-1].source == f"{here}/t/a", "inside the server"
        store.copy("a", "c", open_store(f"s3://{there}/t", options))
        _, for_lance = store.locate("dataset")
        for size in (1, 6 << 20):  # Lance uploads in parts from 5 MB on
            data = pa.table({"x": [os.urandom(size)]})
            lance.write_dataset(data, f"s3://{here}/lance-{size}", storage_options=for_lance)
        # A part, and the end of an upload, belong to what its begin said.
        begun = [one for one in server.requests[made:] if one.verb == "POST" and "uploads" in one.query]
        put = [one for one in server.requests[made:] if one.verb == "PUT" and "uploadId" not in one.query]
        assert len(begun) == 1
        assert len(put) >= 8
        for request in (*begun, *put):
            assert {name: request.headers.get(name) for name in wanted} == wanted, request
