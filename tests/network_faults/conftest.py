from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from network import Proxy, Toxiproxy

HERE = Path(__file__).parent

# Rows, streams and closing checks are those of the tests without a network between.
OTHERS = ("faults", "streaming", "checkpoints", "recovery", "connectors/kafka")
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in OTHERS)]


@pytest.fixture
def s3_proxy(toxiproxy: Toxiproxy, s3_endpoint: str) -> Iterator[Proxy]:
    """A way to the S3 server that can be broken."""
    proxy = toxiproxy.proxy(f"s3-{uuid.uuid4().hex[:8]}", urlsplit(s3_endpoint).netloc)
    yield proxy
    proxy.remove()
