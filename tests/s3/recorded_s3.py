"""moto behind a recorder: every request that an S3 server gets, of our client, of pylance's and of any other."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, unquote

Respond = Callable[..., Any]

REFUSED = 403


@dataclass(frozen=True)
class Request:
    """One request, and how it was answered."""

    verb: str
    bucket: str
    key: str
    """Empty where the bucket itself is asked."""
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)
    """By lower-case names."""
    body: bytes = field(repr=False)
    """Of a POST; others are not kept."""
    status: int

    @property
    def source(self) -> str | None:
        """Bucket and key that a copy reads."""
        given = self.headers.get("x-amz-copy-source")
        return None if given is None else unquote(given).lstrip("/")

    @property
    def lists(self) -> bool:
        """Whether it is a LIST."""
        return self.verb == "GET" and not self.key and ("list-type" in self.query or "prefix" in self.query)


@dataclass
class RecordedS3:
    """The server. `requests` grows in the order of the answers."""

    app: Callable[[dict[str, Any], Respond], Iterable[bytes]] = field(repr=False)
    endpoint: str = ""
    requests: list[Request] = field(default_factory=list, repr=False)
    refuses: Callable[[Request], bool] = lambda request: False
    """Which requests get 403."""

    def __call__(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        verb = environ["REQUEST_METHOD"]
        bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
        query = {name: some[0] for name, some in parse_qs(environ.get("QUERY_STRING", ""), True).items()}
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        body = b""
        if verb == "POST":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)

        request = Request(verb, bucket, key, query, headers, body, REFUSED)

        def answer(status: str, *more: Any) -> Any:
            self.requests.append(replace(request, status=int(status[:3])))
            return respond(status, *more)

        if self.refuses(request):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            answer(f"{REFUSED} Forbidden", [("Content-Length", "0")])
            return [b""]
        return self.app(environ, answer)


@contextmanager
def recorded_s3() -> Iterator[RecordedS3]:
    """The server, while it runs. All of a process share moto's one state."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    made = RecordedS3(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, made, threaded=True, request_handler=MotoRequestHandler)
    made.endpoint = f"http://127.0.0.1:{server.port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
