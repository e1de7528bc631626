"""Object stores behind one port: local disk, S3 and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headgate.connectors.objects.local import LocalStore
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectInfo, ObjectStore
from headgate.connectors.objects.s3.store import S3Store
from headgate.connectors.objects.secrets import redact, scrubbed, without_secrets
from headgate.connectors.objects.wal_options import own_options
from headgate.errors import InvalidInput

__all__ = ["ObjectInfo", "ObjectStore", "without_secrets", "open_store", "redact", "scrubbed"]

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


def open_store(uri: str, storage_options: Mapping[str, object] | None = None) -> ObjectStore:
    """The store at a path, file://, s3:// or memory:// URI, with retries. Does not connect, and writes nothing.

    Storage options are those of S3 under Lance's names; other stores ignore them. Options named `wal.…` are for the WAL
    store, see `wal_options`. Raises InvalidInput for any other scheme and for an unknown option.
    """
    scheme = match[1].lower() if (match := _SCHEME.match(uri)) else ""
    if not uri:
        raise InvalidInput("The URI is empty.")
    if scheme in ("", "file"):
        return LocalStore(uri).retrying()
    if scheme == "s3":
        return S3Store(uri, own_options(storage_options)).retrying()
    if scheme == "memory":
        return MemoryStore(uri).retrying()
    raise InvalidInput(
        f"Unknown URI scheme {scheme!r}.", uri=redact(uri), known="a plain path, file://, s3://, memory://"
    )
