"""Who may ask the console, and what every answer says to the browser. Pure ASGI, so that streams of events pass too.

Promises:
1. A request is answered only where its Host is an IP address, localhost or a name that was allowed: a page of another
   site whose name was made to point here gets nothing.
2. A request that names another origin is refused; one that does something must name this one.
3. Where a token is set, nothing is answered without it. It comes in once, in the address or as a bearer, is moved to
   a cookie that scripts cannot read and that other sites do not send, and the address is left without it.
4. Every answer forbids scripts, styles, frames and requests that are not the console's own.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
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
"""The name of the parameter that carries it."""


@dataclass(frozen=True)
class Door:
    """Who is let in."""

    names: Collection[str] = ()
    """Host names beside localhost and IP addresses."""
    token: str | None = None

    def knows(self, host: str) -> bool:
        """Whether a Host header is one of ours."""
        name = host_name(host)
        if name is None:
            return False
        return name == "localhost" or name in {one.lower() for one in self.names} or _is_address(name)

    def admits(self, given: str | None) -> bool:
        """Whether that is the token."""
        return self.token is not None and given is not None and hmac.compare_digest(given.encode(), self.token.encode())

    @property
    def pass_value(self) -> str:
        """What the cookie carries instead of the token."""
        return hmac.new((self.token or "").encode(), b"headgate console", hashlib.sha256).hexdigest()


class Guard:
    """Around the application."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

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
        """The answer to a request that does not get in; None: it does."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._door.knows(host):
            return _text(400, "This console does not answer to that name. Ask by its IP address, or allow the name.")
        if not _is_own(headers, host, scope["method"]):
            return _text(403, "Another site may not ask this console.")
        return None if self._door.token is None else self._without_token(scope, headers, host)

    def _without_token(self, scope: Scope, headers: Headers, host: str) -> Response | None:
        cookie = cookie_name(host)
        if hmac.compare_digest(_cookie(headers, cookie).encode(), self._door.pass_value.encode()):
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._door.admits(bearer):
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] == "GET" and self._door.admits(dict(asked).get(TOKEN)):
            left = urlencode([(name, value) for name, value in asked if name != TOKEN])
            # `//name` would be another site.
            path = "/" + scope["path"].lstrip("/")
            answer = RedirectResponse(path + (f"?{left}" if left else ""), 303)
            answer.set_cookie(
                cookie, self._door.pass_value, httponly=True, samesite="strict", secure=scope["scheme"] == "https"
            )
            return answer
        return _text(401, "This console needs its token: open the address with ?token=… once.")


def host_name(host: str) -> str | None:
    """The name in a Host header, in lower case, without its port; None where it is malformed."""
    name, bracket, rest = host.partition("]")
    if bracket:
        return name[1:].lower() if name.startswith("[") and (not rest or _is_port(rest)) else None
    name, colon, port = host.partition(":")
    return name.lower().rstrip(".") if name and (not colon or port.isdecimal()) else None


def cookie_name(host: str) -> str:
    """Cookies of one host are shared by its ports, so the port is in the name."""
    port = host.rpartition(":")[2]
    return f"headgate-{port if port.isdecimal() else 80}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_own(headers: Headers, host: str, method: str) -> bool:
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin != "null":
        return origin.partition("://")[2].lower() == host.lower()
    if method in ("GET", "HEAD"):
        # A link from elsewhere may lead here; a picture, a script or a frame there may not.
        return site in (None, "same-origin", "none") or headers.get("sec-fetch-mode") == "navigate"
    return site == "same-origin"


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


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
