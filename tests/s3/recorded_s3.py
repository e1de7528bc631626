"""moto behind a recorder: every request that an S3 server gets, of our client, of pylance's and of any other."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.s3.moto_front import App, Respond, moto_behind

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

    app: App = field(repr=False)
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


def recorded_s3() -> AbstractContextManager[RecordedS3]:
    """The server, while it runs."""
    return moto_behind(RecordedS3)
