"""Who is let in, and what every answer forbids: asked over a real connection."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import headgate
from headgate.console.guard import host_name
from headgate.console.server import TOKEN_VARIABLE, Address, Console, open_console
from headgate.errors import InvalidInput
from tests.support.consoles import ask, console_of, orders

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    lake = tmp_path_factory.mktemp("lake")
    orders(lake / "orders", batches=1, rows=4, partitions=2)
    with console_of(lake) as made:
        yield made


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Console]:
    with console_of(tmp_path, address=Address(port=0, token=TOKEN)) as made:
        yield made


@pytest.mark.parametrize("path", ["/", "/t/orders/shards", "/nothing", "/static/console.js", "/t/nothing/shards"])
def test_every_answer_forbids_what_is_not_the_console_s_own(console: Console, path: str) -> None:
    headers = ask(console, path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::1", "a:b:c", "127.0.0.1:x"]
)
def test_a_name_that_is_not_ours_is_not_answered(console: Console, host: str) -> None:
    answer = ask(console, "/", host=host or " ")
    assert answer.status == 400
    assert "orders" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:8484", "localhost", "LOCALHOST:1", "[::1]:8484", "10.1.2.3"])
def test_an_address_or_localhost_is_answered(console: Console, host: str) -> None:
    assert ask(console, "/", host=host).status == 200


def test_a_name_that_was_allowed_is_answered(tmp_path: Path) -> None:
    with console_of(tmp_path, address=Address(port=0, names=("Lake.example",))) as console:
        assert ask(console, "/", host="lake.example:443").status == 200
        assert ask(console, "/", host="other.example").status == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 200),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}, 200),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}, 403),
        ({"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "object"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
    ],
)
def test_another_site_reads_nothing(console: Console, headers: dict[str, str], status: int) -> None:
    assert ask(console, "/", **headers).status == status


def test_the_own_origin_is_answered(console: Console) -> None:
    host = f"127.0.0.1:{console.port}"
    assert ask(console, "/", Origin=f"http://{host}").status == 200
    assert ask(console, "/", Origin="http://127.0.0.1:1").status == 403, "another port is another origin"


def test_without_the_token_nothing_is_answered(locked: Console) -> None:
    for path in ("/", "/?token=wrong", "/static/console.js", "/events", "/t/orders"):
        answer = ask(locked, path)
        assert (answer.status, "set-cookie" in answer.headers) == (401, False), path
    assert ask(locked, "/", Authorization="Bearer wrong").status == 401
    assert ask(locked, "/", Authorization=f"Bearer {TOKEN}").status == 200
    assert ask(locked, "/", Cookie=f"headgate-{locked.port}={TOKEN}").status == 401, "the cookie is not the token"
    assert ask(locked, "/", Cookie=f"headgate-{locked.port}=\xfc").status == 401


def test_the_token_moves_from_the_address_to_a_cookie(locked: Console) -> None:
    moved = ask(locked, f"//evil.example/x?a=1&token={TOKEN}")
    assert moved.status == 303
    assert moved.headers["location"] == "/evil.example/x?a=1", "no other site, and no token"
    first = ask(locked, f"/?token={TOKEN}")
    assert (first.status, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    own = cookie.partition(";")[0]
    assert ask(locked, "/", Cookie=own).status == 200
    assert ask(locked, "/", Cookie=f'other={{"a": "b"}}; {own}; x').status == 200, (
        "other servers' cookies do not matter"
    )
    again = ask(locked, f"/?token={TOKEN}", Cookie=own)
    assert (again.status, again.headers["location"]) == (303, "/"), "the token does not stay in the address"


def test_elsewhere_than_here_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(InvalidInput, match=r"0\.0\.0\.0") as refused:
        Address.of("0.0.0.0", 0)
    assert TOKEN_VARIABLE in str(refused.value)
    shown = Address.of("0.0.0.0", 0, can_show=True)
    assert shown.token is not None
    assert len(shown.token) >= 32
    assert shown.token not in repr(shown)
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    with pytest.raises(InvalidInput, match="fewer than 16"):
        Address.of("127.0.0.1", 0)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert Address.of("0.0.0.0", 0).token == TOKEN


def test_the_token_is_in_no_log_line_and_no_error(tmp_path: Path) -> None:
    out = io.StringIO()
    headgate.configure_logs("json", level="DEBUG", stream=out)
    try:
        with console_of(tmp_path, address=Address(port=0, token=TOKEN)) as console:
            ask(console, f"/?token={TOKEN}")
            told = ask(console, f"/?token={TOKEN}x").text + ask(console, f"/nothing?token={TOKEN}").text
            with pytest.raises(InvalidInput) as taken:
                open_console((), Address(port=console.port, token=TOKEN))
    finally:
        structlog.reset_defaults()
    assert TOKEN not in out.getvalue() + told + str(taken.value)


@pytest.mark.parametrize(
    ("host", "name"),
    [("A.b:80", "a.b"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("a.", "a"), (":80", None), ("[a]b", None), ("", None)],
)
def test_a_host_header_is_a_name_and_a_port(host: str, name: str | None) -> None:
    assert host_name(host) == name


def test_the_server_ends_while_pages_listen(console: Console, tmp_path: Path) -> None:
    import socket

    with console_of(tmp_path) as other:
        listening = socket.create_connection(("127.0.0.1", other.port), 30)
        listening.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{other.port}\r\n\r\n".encode())
        assert b"200" in listening.recv(200)
        other.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", other.port), 5)
        listening.close()
