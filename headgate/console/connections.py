"""Connections to the console, with limits: it may run in a driver, whose files and memory no client may use up.

Promises:
1. There are at most MOST_CONNECTIONS; further ones are closed at once.
2. A client that sends no complete request within REQUEST_SECONDS is disconnected, also after an earlier one.
3. No request is logged: an address may contain the token.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 160
REQUEST_SECONDS = 15.0
MOST_HEADERS = 160 << 10
"""Bytes of a request without its body: enough for a vector of 4,096 numbers in the address."""


class Connection(H11Protocol):
    """One connection."""

    _late: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        before = self.cycle
        super().on_response_complete()
        if self.cycle is before:  # else the next request was there already
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._late = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
