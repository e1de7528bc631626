"""An S3 server on loopback that answers each request as the test wrote it down."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STORE_AND_DROP = -1
"""Store the object, then close the connection without an answer."""
DROP = -2
"""Store nothing and close the connection."""
COPIED = b"<CopyObjectResult><ETag>tag</ETag></CopyObjectResult>"


@dataclass
class ScriptedS3:
    """Honest about If-None-Match, except where `script` has an answer left for the verb. A list is always empty."""

    endpoint: str
    script: dict[str, list[int]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    error_text: str = ""
    refusal: bytes = b"<Error><Code>PreconditionFailed</Code></Error>"
    """The body of a 412."""

    def answer(
        self, verb: str, path: str, body: bytes, only_if_absent: bool, source: str | None = None
    ) -> tuple[int, bytes]:
        self.asked[verb] += 1
        planned = self.script.get(verb, [])
        status = planned.pop(0) if planned else 200
        if status > 200 or status == DROP:
            return status, f"<Error><Code>Scripted</Code><Message>{self.error_text}</Message></Error>".encode()
        if verb == "PUT":
            if only_if_absent and path in self.objects:
                return 412, self.refusal
            self.objects[path] = body if source is None else self.objects[f"/{source.lstrip('/')}"]
            return status, b"" if source is None else COPIED
        if "list-type=2" in path:
            return (
                status,
                b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>",
            )
        if verb == "DELETE":
            self.objects.pop(path, None)
            return status, b""
        if path not in self.objects:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>"
        return status, self.objects[path]


@contextmanager
def scripted_s3(**script: list[int]) -> Iterator[ScriptedS3]:
    """The server, with the answers per verb that come before honest ones."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            absent, source = self.headers.get("If-None-Match") == "*", self.headers.get("x-amz-copy-source")
            status, answer = s3.answer(self.command, self.path, body, absent, source)
            if status in (STORE_AND_DROP, DROP):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            head = [f"HTTP/1.1 {status} Scripted", 'ETag: "tag"', f"Content-Length: {len(answer)}"]
            head.append("Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT")
            sent = answer if self.command != "HEAD" else b""
            self.wfile.write("\r\n".join(head).encode() + b"\r\n\r\n" + sent)

        do_PUT = do_GET = do_HEAD = do_DELETE = _any

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    s3 = ScriptedS3(f"http://127.0.0.1:{server.server_port}", script=dict(script))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield s3
    finally:
        server.shutdown()
        server.server_close()
