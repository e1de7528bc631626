"""The console as a server in a thread of this process.

Promises:
1. It listens on 127.0.0.1 by default, and on other addresses only with a token. No log line, record or error contains
   the token; the caller shows it to a person, or took it from the environment.
2. It handles no signal and forks nothing. `close` ends it within seconds, even if pages are open. `connections` has the
   limits of what clients can use up.
3. If the address is not available, it raises InvalidInput before anything runs.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from headgate import parallel
from headgate.connectors.extras import needs
from headgate.console import PORT
from headgate.console.guard import Door, Guard, is_loopback
from headgate.console.watch.places import TablePlace
from headgate.console.watch.watcher import Watcher
from headgate.errors import InvalidInput
from headgate.table.status import Consumer

with needs():
    import uvicorn

    from headgate.console.app import application
    from headgate.console.connections import MOST_HEADERS, Connection

TOKEN_VARIABLE = "HEADGATE_UI_TOKEN"
SHORTEST_TOKEN = 16
STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Address:
    """Where to listen, and which requests are accepted."""

    host: str = "127.0.0.1"
    port: int = PORT
    names: Collection[str] = ()
    """Allowed host names besides localhost and IP addresses, as a proxy may send them."""
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, host: str = "127.0.0.1", port: int = PORT, names: Collection[str] = (), *, can_show: bool = False
    ) -> Address:
        """An address with the token of HEADGATE_UI_TOKEN. If there is none and other machines can reach the address:
        with a new token if `can_show`, else raises InvalidInput.
        """
        token = os.environ.get(TOKEN_VARIABLE) or None
        if token is not None and len(token) < SHORTEST_TOKEN:
            what = f"{TOKEN_VARIABLE} has fewer than {SHORTEST_TOKEN} characters."
            raise InvalidInput(what, advice="make one with `openssl rand -hex 32`; nothing was started")
        if token is None and not is_loopback(host):
            if not can_show:
                raise InvalidInput(
                    f"The console is to listen on {host}, where others reach it, and has no token.",
                    advice=f"set {TOKEN_VARIABLE}, or listen on 127.0.0.1; nothing was started",
                )
            token = secrets.token_urlsafe(32)
        return cls(host, port, names, token)


class Console:
    """A running console. Call `close` when done."""

    def __init__(self, watcher: Watcher, address: Address) -> None:
        """Listens when this returns. Raises InvalidInput if the address is not available."""
        self.watcher = watcher
        self._address = address
        self._socket = _bound(address)
        self.port: int = self._socket.getsockname()[1]
        self._app = application(watcher)
        config = uvicorn.Config(
            Guard(self._app, Door(address.names, address.token)),
            http=Connection,
            ws="none",
            log_config=None,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=MOST_HEADERS,
        )
        self._server = uvicorn.Server(config)
        self._thread = parallel.thread("console-server", self._server.run, [self._socket])
        self._closed = False
        watcher.start()
        self._thread.start()

    @property
    def url(self) -> str:
        """The console's address, without the token."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._address.host, self._address.host)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}/"

    @property
    def url_with_token(self) -> str:
        """The address with the token, if there is one: to be shown to a person once."""
        return self.url if self._address.token is None else f"{self.url}?token={self._address.token}"

    def close(self) -> None:
        """Stop the server and the watcher. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._app.state.stopping = True
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS)
        self.watcher.stop()
        self._socket.close()


def open_console(
    places: Sequence[TablePlace], address: Address, *, consumer: Consumer | None = None, watcher: Watcher | None = None
) -> Console:
    """Start a console of these tables. `consumer` reaches Kafka, for the lag. Raises InvalidInput."""
    return Console(watcher or Watcher(places, consumer), address)


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(128)
    except (OSError, OverflowError) as error:
        made.close()
        raise InvalidInput(
            f"The console cannot listen on {address.host}:{address.port}: {getattr(error, 'strerror', None) or error}.",
            advice="choose another port, 0 takes any free one; nothing was started",
        ) from error
    return made
