"""A store whose requests take their time, and how many of them wait for one another.

The measure is the longest chain: the most requests of which each began after the one before it had ended. Requests side
by side count once, so that it is what a caller waits for, in round trips; it hardly depends on how busy the machine is.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import Bytes, ObjectInfo

T = TypeVar("T")

DELAY = 0.03
"""Seconds until a store answers."""


@dataclass(frozen=True)
class Request:
    """One request, and when it was under way."""

    begin: float
    end: float
    what: str


@dataclass
class Requests:
    """Those of one run, in the order of their answers."""

    made: list[Request] = field(default_factory=list)
    delay: float = DELAY

    @contextmanager
    def one(self, what: str) -> Iterator[None]:
        """A request that takes so much more."""
        begin = time.perf_counter()
        try:
            time.sleep(self.delay)
            yield
        finally:
            self.made.append(Request(begin, time.perf_counter(), what))

    def clear(self) -> None:
        """Count anew."""
        self.made.clear()


def chain(requests: Sequence[Request]) -> list[Request]:
    """A longest one: always go on with the request that ends first of those that begin later."""
    found: list[Request] = []
    for one in sorted(requests, key=lambda request: request.end):
        if not found or one.begin >= found[-1].end:
            found.append(one)
    return found


class SlowMemory(MemoryStore):
    """A memory store that takes its time."""

    requests = Requests()

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        with self.requests.one(f"PUT {key}"):
            super().put_if_absent(key, data)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        with self.requests.one(f"PUT {key}"):
            super().put_overwrite(key, data)

    def get(self, key: str) -> memoryview:
        with self.requests.one(f"GET {key}"):
            return super().get(key)

    def head(self, key: str) -> ObjectInfo:
        with self.requests.one(f"HEAD {key}"):
            return super().head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self.requests.one(f"LIST {prefix}"):
            return super().list(prefix)

    def list_folders(self, prefix: str) -> Iterator[str]:
        with self.requests.one(f"LIST {prefix}"):
            return super().list_folders(prefix)

    def delete(self, key: str) -> None:
        with self.requests.one(f"DELETE {key}"):
            super().delete(key)

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        with self.requests.one(f"COPY {src}"):
            super().copy(src, dst, dst_store)


# -- a proxy ---------------------------------------------------------------------------

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_ANSWER_BODYLESS = re.compile(rb"HTTP/1\.[01] (?:1..|204|304)")


class SlowProxy:
    """In front of an HTTP server on loopback: passes every request on after a while, whoever sends it, and notes it."""

    def __init__(self, port: int) -> None:
        self.requests = Requests()
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> SlowProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._to) as server, suppress(OSError, EOFError):
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asks, answers = client.makefile("rb"), server.makefile("rb")
            while True:
                head = _head(asks)
                verb, path, *_ = head.split(b" ", 2)
                with self.requests.one(f"{verb.decode()} {path.decode()}"):
                    server.sendall(head + _body(asks, head))
                    answer = _head(answers)
                    while answer.startswith(b"HTTP/1.1 100"):
                        answer = _head(answers)
                    bodyless = verb == b"HEAD" or _ANSWER_BODYLESS.match(answer) is not None
                    body = b"" if bodyless else _body(answers, answer)
                client.sendall(answer + body)


def _head(stream: object) -> bytes:
    lines = []
    while (line := stream.readline()) not in (b"\r\n", b"\n"):  # type: ignore[attr-defined]
        if not line:
            raise EOFError
        lines.append(line)
    return b"".join([*lines, b"\r\n"])


def _body(stream: object, head: bytes) -> bytes:
    """As it was sent, chunks included."""
    if _CHUNKED.search(head):
        parts = []
        while True:
            size = stream.readline()  # type: ignore[attr-defined]
            parts += [size, stream.read(int(size.split(b";")[0], 16) + 2)]  # type: ignore[attr-defined]
            if int(size.split(b";")[0], 16) == 0:
                return b"".join(parts)
    length = _LENGTH.search(head)
    return stream.read(int(length[1])) if length else b""  # type: ignore[attr-defined]
