"""Objects in a bucket of S3 or of an S3-compatible server, through obstore.

A conditional PUT (If-None-Match) decides which caller gets a name. obstore does not retry requests; the
`RetryingStore` around this store does.

obstore's threads do not survive a fork. A process whose parent used it gets ForkedProcess at once instead of a hang.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa

from headgate.connectors.objects.errors import obstore_error
from headgate.connectors.objects.port import (
    Bytes,
    ObjectInfo,
    ObjectStore,
    as_buffers,
    checked_folder,
    checked_key,
    checked_range,
)
from headgate.connectors.objects.s3.credentials import renewed_credentials
from headgate.connectors.objects.s3.options import checked_options, secrets_of
from headgate.connectors.objects.secrets import redact, remember
from headgate.errors import (
    AlreadyExists,
    ForkedProcess,
    HeadgateError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    StoreError,
    Transient,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store as Client

T = TypeVar("T")

_URI = re.compile(r"s3://([^/@:?#]+)(?:/([^?]*))?")
_READ_OTHERWISE = re.compile(r"#|\\|%[0-9a-fA-F]{2}| $")
"""Not allowed in a folder's name: Lance parses its URI as a URL and would use another folder; MinIO rejects a
backslash."""
_LONGEST_FOLDER = 704
"""Bytes. S3 allows keys of 1,024; the longest key below a table's folder, of a stream's dead letters, has 306."""
_PAGE = 1000
"""Keys that S3 returns per LIST request."""

_TIMEOUTS = {"read_timeout": "30s", "timeout": "1h"}
"""A response may take up to an hour while bytes arrive: obstore's default of 30 seconds is for the whole response, so a
longer one could never be read. A request has 30 seconds until its response begins.
"""

_user: int | None = None
"""The process that first used obstore. A forked child inherits this number, and so detects the fork."""


class S3Store(ObjectStore):
    """`s3://bucket/folder`. Options have pylance's names; `uri` and errors never contain credentials."""

    def __init__(self, uri: str, storage_options: Mapping[str, object] | None = None) -> None:
        super().__init__(redact(uri))
        match = _URI.fullmatch(uri)
        if match is None:
            raise InvalidInput(
                "An S3 URI must be s3://bucket/folder, without user, password or query.",
                uri=self.uri,
                advice="put credentials into storage_options",
            )
        folder = (match[2] or "").strip("/")
        self._bucket = match[1]
        self._folder = _checked_root(folder) + "/" if folder else ""
        self._options = checked_options(storage_options or {})
        self._made: Client | None = None

    # -- puts ----------------------------------------------------------------

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        """The URI and the checked options."""
        return f"s3://{self._bucket}/{self._folder}{checked_key(key) if key else ''}".rstrip("/"), dict(self._options)

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Store the object if the name is free.

        1. One PUT with If-None-Match, never multipart.
        2. "Already exists", and a HEAD finds the object: AlreadyExists. It may be our own, from an earlier call.
        3. "Already exists", and a HEAD finds nothing: a 409, because two requests collided; Transient.
        4. No response, throttling or a server error: Transient, with an unknown outcome.
        """
        import obstore

        full, body, client = self._full(key), _body(data), self._client()
        self._count("put")
        try:
            self._run("put_if_absent", key, lambda: obstore.put(client, full, body, mode="create", use_multipart=False))
        except AlreadyExists as error:
            if self._exists(key):
                raise
            raise Transient(
                "put_if_absent collided with another request for the same name.", store=self.uri, key=key
            ) from error

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Store or replace the object."""
        import obstore

        full, body, client = self._full(key), _body(data), self._client()
        self._count("put")
        self._run("put_overwrite", key, lambda: obstore.put(client, full, body, use_multipart=False))

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        """Copy an object, replacing `dst`; on the server if both use one bucket with the same options."""
        import obstore

        target = dst_store or self
        if not isinstance(target, S3Store) or (target._bucket, target._options) != (self._bucket, self._options):
            target.put_overwrite(dst, self.get(src))
            return
        source, full, client = self._full(src), target._full(dst), self._client()
        self._count("copy")
        self._run("copy", src, lambda: obstore.copy(client, source, full))

    # -- reads ---------------------------------------------------------------

    def get(self, key: str) -> memoryview:
        """The whole object. Raises NotFound."""
        import obstore

        full, client = self._full(key), self._client()
        self._count("get")
        return _placed(self._run("get", key, lambda: memoryview(obstore.get(client, full).bytes())))

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Up to `length` bytes from `start`; shorter at the end, empty past it. Raises NotFound."""
        import obstore

        checked_range(start, length)
        full, client = self._full(key), self._client()
        if length > 0:
            self._count("get")
            try:
                return _placed(
                    self._run(
                        "get_range",
                        key,
                        lambda: memoryview(obstore.get_range(client, full, start=start, length=length)),
                    )
                )
            except Transient:
                # obstore has no own error for a range that starts past the end; the size shows it.
                if start < self.head(key).size:
                    raise
        else:
            self.head(key)
        return memoryview(b"")

    def head(self, key: str) -> ObjectInfo:
        """Size and time. Raises NotFound."""
        import obstore

        full, client = self._full(key), self._client()
        self._count("head")
        return self._info(self._run("head", key, lambda: obstore.head(client, full)))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the folder, recursively. A missing bucket raises Transient."""
        import obstore

        checked_folder(prefix)
        client = self._client()
        pages = obstore.list(client, prefix=self._folder + prefix or None, chunk_size=_PAGE)
        return self._listed(prefix, pages)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly below."""
        import obstore

        checked_folder(prefix)
        client, folder = self._client(), self._folder + prefix
        found = self._run_list(prefix, lambda: obstore.list_with_delimiter(client, folder or None))
        self._count("list", max(1, -(-(len(found["objects"]) + len(found["common_prefixes"])) // _PAGE)))
        return iter([path.rstrip("/").removeprefix(folder) for path in found["common_prefixes"]])

    def delete(self, key: str) -> None:
        """Remove the object. A missing object is not an error."""
        import obstore

        full, client = self._full(key), self._client()
        self._count("delete")
        try:
            self._run("delete", key, lambda: obstore.delete(client, full))
        except NotFound:
            return

    def _listed(self, prefix: str, pages: Iterator[Sequence[ObjectMeta]]) -> Iterator[ObjectInfo]:
        self._count("list")
        first = True
        while page := self._run_list(prefix, lambda: next(pages, None)):
            # The first page is counted before its request, so that an empty or failed LIST counts too.
            self._count("list", 0 if first else 1)
            first = False
            yield from map(self._info, page)

    # -- the client ------------------------------------------------------------

    def _client(self) -> Client:
        """The client of this process. Raises ForkedProcess."""
        global _user
        _user = _user or os.getpid()
        if _user != os.getpid():
            raise ForkedProcess("The parent of this process used S3 before it forked.", store=self.uri, parent=_user)
        if self._made is None:
            from obstore.store import S3Store as Client

            renewed = renewed_credentials(self._options)
            config = dict(self._options) if "timeout" in self._options else {**_TIMEOUTS, **self._options}
            if renewed is not None and renewed.region and not os.environ.get("AWS_REGION"):
                config.setdefault("aws_region", renewed.region)
            try:
                self._made = Client(
                    self._bucket,
                    config=config,  # type: ignore[arg-type]
                    retry_config={"max_retries": 0},
                    credential_provider=renewed,
                )
            except Exception as error:
                refused = obstore_error(error, "open", self.uri, "").__cause__
            else:
                return self._made
            raise InvalidInput("A storage option has an invalid value.", store=self.uri) from refused
        return self._made

    def _run(self, verb: str, key: str, call: Callable[[], T]) -> T:
        meant: HeadgateError
        try:
            return call()
        except Exception as error:
            meant = obstore_error(error, verb, self.uri, key)
        raise meant

    def _run_list(self, prefix: str, call: Callable[[], T]) -> T:
        """obstore raises the same error for every failed LIST; a HEAD shows whether the credentials were rejected."""
        try:
            return self._run("list", prefix, call)
        except Transient as error:
            failed: StoreError = error
        import obstore

        client = self._client()
        try:
            self._count("head")
            self._run("list", prefix, lambda: obstore.head(client, f"{self._folder}{prefix}-"))
        except PermissionDenied as error:
            failed = error
        except StoreError:
            pass
        raise failed

    def _exists(self, key: str) -> bool:
        try:
            self.head(key)
        except NotFound:
            return False
        return True

    def _full(self, key: str) -> str:
        return self._folder + checked_key(key)

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        return ObjectInfo(meta["path"].removeprefix(self._folder), meta["size"], meta["last_modified"])

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_made": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        remember(secrets_of(self._options))


def _checked_root(folder: str) -> str:
    """Returns the folder if S3 can hold a table there and Lance can open it. Raises InvalidInput."""
    if len(checked_key(folder).encode()) > _LONGEST_FOLDER:
        raise InvalidInput(f"The folder {folder[:80]!r}… on S3 is longer than {_LONGEST_FOLDER} bytes.")
    if _READ_OTHERWISE.search(folder) is not None:
        why = "has a '#', a backslash or an escape such as %20, or ends in a space"
        raise InvalidInput(f"The folder {folder[:80]!r} on S3 {why}.")
    return folder


def _placed(data: memoryview) -> memoryview:
    """The same bytes aligned to 8 bytes; copied if they are not: obstore does not align them."""
    if pa.py_buffer(data).address % 8 == 0:
        return data
    room = pa.allocate_buffer(data.nbytes)
    memoryview(room).cast("B")[:] = data.cast("B")
    return memoryview(room).cast("B").toreadonly()


def _body(data: Bytes | Sequence[Bytes]) -> memoryview | Sequence[memoryview]:
    buffers = as_buffers(data)
    return cast("memoryview | Sequence[memoryview]", buffers[0] if len(buffers) == 1 else buffers)
