"""Checks requests to the console, and sets the security headers of every response. Pure ASGI, so that event streams
pass too.

Promises:
1. A request is accepted only if its Host is an IP address, localhost or an allowed name: this defeats another site
   whose name was made to resolve to this machine (DNS rebinding).
2. A request that names another origin is rejected; one that starts something must name this origin. Other sites can
   link to a page, but not load it into a frame, where it would read a table that nobody sees.
3. If a token is set, every request needs it. A token in the address is moved to a cookie, which scripts cannot read and
   other sites do not send, and the browser is redirected to the address without it. A script may send it as a bearer.
4. Every response forbids scripts, styles, frames and requests that are not the console's own.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
TOKEN = "token"
"""The query parameter with the token."""


@dataclass(frozen=True)
class Door:
    """Which requests are accepted."""

    names: Collection[str] = ()
    """Allowed host names besides localhost and IP addresses."""
    token: str | None = None

    def knows(self, host: str) -> bool:
        """True if a Host header is allowed."""
        name = host_name(host)
        if name is None:
            return False
        return name == "localhost" or name in {one.lower() for one in self.names} or _is_address(name)

    def admits(self, given: str | None) -> bool:
        """True if that is the token."""
        return self.token is not None and given is not None and hmac.compare_digest(given.encode(), self.token.encode())

    @property
    def pass_value(self) -> str:
        """The cookie's value, which does not reveal the token."""
        return hmac.new((self.token or "").encode(), b"headgate console", hashlib.sha256).hexdigest()


class Guard:
    """Around the whole application, so that also the response to an unexpected error has the headers."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server offers nothing else"

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refused(scope)
        await (self._app if refused is None else refused)(scope, receive, protected)

    def _refused(self, scope: Scope) -> Response | None:
        """The response to a rejected request; None if it is accepted."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._door.knows(host):
            return _text(400, "This console does not answer to that name. Ask by its IP address, or allow the name.")
        if not _is_own(headers, host, scope["method"]):
            return _text(403, "Another site may not ask this console.")
        return None if self._door.token is None else self._without_token(scope, headers, host)

    def _without_token(self, scope: Scope, headers: Headers, host: str) -> Response | None:
        cookie = cookie_name(host)
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] == "GET" and self._door.admits(dict(asked).get(TOKEN)):
            # Also if the cookie is already there: the token must not stay in the address.
            left = urlencode([(name, value) for name, value in asked if name != TOKEN])
            # A redirect to `//name` would lead to another site.
            path = "/" + scope["path"].lstrip("/")
            answer = RedirectResponse(path + (f"?{left}" if left else ""), 303)
            answer.set_cookie(
                cookie, self._door.pass_value, httponly=True, samesite="strict", secure=scope["scheme"] == "https"
            )
            return answer
        # Not http.cookies: it gives up at the first odd cookie that another server on this host has set.
        given = cookie_parser(headers.get("cookie", "")).get(cookie, "")
        if hmac.compare_digest(given.encode(), self._door.pass_value.encode()):
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._door.admits(bearer):
            return None
        return _text(401, "This console needs its token: open the address with ?token=… once.")


def host_name(host: str) -> str | None:
    """The name in a Host header, in lower case, without its port; None if it is malformed."""
    name, bracket, rest = host.partition("]")
    if bracket:
        return name[1:].lower() if name.startswith("[") and (not rest or _is_port(rest)) else None
    name, colon, port = host.partition(":")
    return name.lower().rstrip(".") if name and (not colon or port.isdecimal()) else None


def cookie_name(host: str) -> str:
    """The cookie's name. It contains the port, because browsers share cookies between the ports of a host."""
    port = host.rpartition(":")[2]
    return f"headgate-{port if port.isdecimal() else 80}"


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_own(headers: Headers, host: str, method: str) -> bool:
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin != "null":
        return origin.partition("://")[2].lower() == host.lower()
    if method in ("GET", "HEAD"):
        # Links of other sites may lead here; their pictures, scripts and frames may not load from here.
        is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return site in (None, "same-origin", "none") or is_link
    return site == "same-origin"


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isdecimal()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _text(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)
