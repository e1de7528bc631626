from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.support.network import Proxy, Toxiproxy


@pytest.fixture
def s3_proxy(toxiproxy: Toxiproxy, s3_endpoint: str) -> Iterator[Proxy]:
    """A way to the S3 server that can be broken."""
    proxy = toxiproxy.proxy(f"s3-{uuid.uuid4().hex[:8]}", urlsplit(s3_endpoint).netloc)
    yield proxy
    proxy.remove()
