"""A schema registry on this machine, and values in its wire format as another library writes them."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import fastavro

AUTH = "u:secret"
"""Who asks must say this."""


class Registry(BaseHTTPRequestHandler):
    """Answers by path, and what was asked."""

    asked: ClassVar[list[str]] = []
    answers: ClassVar[dict[str, tuple[int, Any]]] = {}

    def do_GET(self) -> None:
        """401 for whoever is not known."""
        Registry.asked.append(self.path)
        code, body = self.answers.get(self.path, (404, {}))
        if self.headers.get("Authorization") != "Basic dTpzZWNyZXQ=":
            code = 401
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def serving(answers: Mapping[str, tuple[int, Any]]) -> Iterator[str]:
    """The address of a registry with these answers."""
    Registry.asked.clear()
    Registry.answers = dict(answers)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def wire(schema: Any, value: Any, number: int = 7) -> bytes:
    """A zero byte, the schema's id, the value."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()
