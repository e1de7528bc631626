from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headgate.connectors.objects import open_store, redact
from headgate.connectors.objects.local import LocalStore
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.s3.store import S3Store
from headgate.errors import InvalidInput


def test_the_scheme_chooses_the_store(tmp_path: Path) -> None:
    assert type(open_store(str(tmp_path)).counting) is LocalStore
    assert type(open_store(tmp_path.as_uri()).counting) is LocalStore
    assert type(open_store("memory://name").counting) is MemoryStore
    assert type(open_store("s3://bucket/a").counting) is S3Store


@pytest.mark.parametrize("uri", ["gs://key:hush@bucket/a", "ftp://x", "", "memory://"])
def test_another_scheme_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(uri)
    assert "hush" not in str(caught.value)
    if "ftp" in uri:
        for known in ("file://", "s3://", "memory://"):
            assert known in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://key:secret@bucket/a", "s3://bucket/a"),
        ("s3://key:se/cr@et@bucket/a", "s3://bucket/a"),
        ("s3://key@bucket/a", "s3://bucket/a"),
        ("https://host:9000/a?X-Amz-Signature=1", "https://host:9000/a"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("/data/what?/user@host", "/data/what?/user@host"),
    ],
)
def test_redacting_takes_user_password_and_query(uri: str, shown: str) -> None:
    assert redact(uri) == shown


def test_nothing_native_is_loaded_before_the_first_operation() -> None:
    program = (
        "import sys, pickle\n"
        "from headgate.connectors.objects import open_store\n"
        "for uri in ('s3://bucket/a', '/tmp/never-made', 'memory://x'):\n"
        "    pickle.loads(pickle.dumps(open_store(uri)))\n"
        "assert not [name for name in sys.modules if name.startswith(('obstore', 'lance'))]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
