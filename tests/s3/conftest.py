from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Here the promises that other folders check on local disk are checked on S3: tables, faults and processes are theirs.
OTHERS = ("faults", "streaming", "checkpoints", "search", "recovery", "cli", "connectors", "connectors/kafka")
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in OTHERS)]


@pytest.fixture
def s3_environment(s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Credentials in the environment, of this process and of those that it starts. What was set."""
    settings = {
        "AWS_ACCESS_KEY_ID": s3_options["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3_options["aws_secret_access_key"],
        "AWS_ENDPOINT": s3_options["aws_endpoint"],
        "AWS_ENDPOINT_URL": s3_options["aws_endpoint"],
        "AWS_REGION": s3_options["aws_region"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings
