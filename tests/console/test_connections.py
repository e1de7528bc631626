"""What clients can use up: connections, threads, and the process by what they ask for. Over real connections."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
import structlog

import headgate
from headgate.console import app, connections
from headgate.console.server import Console
from headgate.console.watch import watcher
from tests.console.test_pages import words
from tests.support.consoles import ask, console_of, orders


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    table = orders(tmp_path_factory.mktemp("lake") / "orders", batches=1, rows=4, partitions=1)
    with console_of(table.uri) as made:
        yield made


def connected(console: Console) -> socket.socket:
    return socket.create_connection(("127.0.0.1", console.port), 60)


def is_closed(connection: socket.socket) -> bool:
    """Waits until the server ends the connection, by its end or by a reset."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_beyond_the_limit_are_closed_and_the_others_are_answered(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 0)
    with connected(console) as refused:
        assert is_closed(refused)
    monkeypatch.undo()
    assert ask(console, "/").status == 200


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_a_client_that_sends_no_request_is_disconnected(
    console: Console, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with connected(console) as idle:
        idle.sendall(sent)
        assert is_closed(idle)


def test_a_client_that_asks_once_and_then_dawdles_is_disconnected(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with connected(console) as client:
        client.sendall(b"GET /static/icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = client.makefile("rb")
        assert b"200" in answer.readline()
        client.sendall(b"GET / HTTP/1.1\r\n")
        answer.read()  # until the server ends it


def test_a_body_that_does_not_come_is_not_waited_for(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.2)
    with connected(console) as client:
        host = f"127.0.0.1:{console.port}"
        head = f"POST /t/orders/health HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nContent-Length: 9\r\n\r\n"
        client.sendall(head.encode())
        assert b"408" in client.makefile("rb").readline()


def test_a_websocket_gets_the_page_as_anybody(console: Console) -> None:
    asked = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": "x"}
    answer = ask(console, "/", **asked)
    assert answer.status == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert ask(console, "/", host="evil.example", **asked).status == 400


def test_an_unexpected_error_tells_its_class_alone_and_has_the_headers(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a-secret")

    monkeypatch.setattr(app, "overview", fails)
    out = io.StringIO()
    headgate.configure_logs("json", level="DEBUG", stream=out)
    try:
        answer = ask(console, "/")
    finally:
        structlog.reset_defaults()
    assert answer.status == 500
    assert "ValueError" in words(answer.text)
    assert "test_connections.py:" in out.getvalue()
    assert "a-secret" not in answer.text + out.getvalue()
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_long_read_holds_up_no_page_that_shows_what_is_known(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "READING_SECONDS", 0.1)
    table = console.watcher.table("orders")
    assert table is not None
    with table.reading():
        waits = ask(console, "/t/orders/rows")
        assert ask(console, "/t/orders/stream").status == 200
    assert waits.status == 503
    assert "is being read for another page" in words(waits.text)
    assert ask(console, "/t/orders/rows").status == 200


def test_what_a_page_is_asked_for_is_bounded(console: Console) -> None:
    """Lance overflows its stack at an expression of that many levels, which would end the process."""
    for page in ("rows", "search?q=order"):
        at = f"/t/orders/{page}{'&' if '?' in page else '?'}filter="
        deep = ask(console, at + quote("id > " + "+".join(["1"] * 5_000)))
        assert deep.status == 200
        assert "The console accepts 1,000" in words(deep.text)
        assert ask(console, at + quote("id > " + "+".join(["1"] * 300))).status == 200, "this is not too deep"
    assert ask(console, "/t/orders/search?q=order&k=" + "9" * 5_000).status == 200
    assert ask(console, "/t/orders/stream?partition=0&offset=" + "9" * 19).status == 200
    assert ask(console, "/t/orders/stream?offset=1&partition=" + "9" * 19).status == 200


def test_a_vector_of_a_usual_model_is_searched_and_stays_in_its_field(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("place", pa.list_(pa.float32(), 1536))])
    table = headgate.create_table(str(tmp_path / "t"), schema, vector={"place": headgate.vector("l2")})
    vector = [round(n / 1536 - 0.5, 16) for n in range(1536)]
    with table.writer("single") as writer:
        writer.put(pa.table({"id": [7], "place": pa.array([vector], schema.field("place").type)}))
    with console_of(table.uri) as shown:
        page = ask(shown, "/t/t/search?vector=" + quote(str(vector)))
    assert page.status == 200
    assert "distance 0 id 7" in words(page.text)
    assert f">{vector}</textarea>" in page.text
