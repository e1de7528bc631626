from __future__ import annotations

import logging
import urllib.request
import uuid
from collections.abc import Iterator

import pytest
from scripted_s3 import options_for

from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server on loopback, in a thread of this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint: str) -> str:
    """A fresh bucket of that server."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_endpoint}/{name}", method="PUT")).close()
    return name


@pytest.fixture
def s3_options(s3_endpoint: str) -> dict[str, str]:
    return options_for(s3_endpoint)


@pytest.fixture
def foreign() -> Iterator[ObjectStore]:
    """A store of another kind, to copy to and from."""
    yield MemoryStore("memory://foreign")
    MemoryStore.drop("foreign")
