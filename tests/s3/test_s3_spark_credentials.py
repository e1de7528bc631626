"""Credentials that are given to Spark as options are in nothing that it, its tasks or its streams write or print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import headgate
from headgate.connectors.objects import open_store
from tests.support.services import S3_SECRETS

APPLICATION = Path(__file__).with_name("credentials_application.py")


@pytest.mark.spark
@pytest.mark.s3
@pytest.mark.real_s3
def test_streams_and_reads_with_credentials_as_options_write_and_print_none(
    bucket: str, s3_options: dict[str, str], tmp_path: Path
) -> None:
    for name in ("write", "sink"):
        schema = pa.schema([pa.field("id", pa.int64())])
        headgate.create_table(f"s3://{bucket}/{name}", schema, storage_options=s3_options)
    for name in ("rows", "events"):
        (tmp_path / name).mkdir()
    (tmp_path / "rows" / "1.json").write_text("".join(f'{{"id": {number}}}\n' for number in range(20)))
    command = [sys.executable, str(APPLICATION), str(tmp_path), f"s3://{bucket}"]
    done = subprocess.run(command, input=json.dumps(s3_options), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    assert [one["failed"] for one in told if "failed" in one] == ["write", "sink", "read", "read", "follow"]
    assert [one["rows"] for one in told if "rows" in one] == [[*range(20)]] * 2
    store = open_store(f"s3://{bucket}", s3_options)
    written = {key: bytes(store.get(key)) for key in (info.key for info in store.list(""))}
    written |= {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    written |= {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    assert any("SparkListenerSQLExecutionStart" in data.decode(errors="replace") for data in written.values())
    for secret in S3_SECRETS:
        assert [name for name, data in written.items() if secret.encode() in data] == []
