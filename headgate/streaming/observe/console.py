"""The console of this process, for its streams. One address has one console, however many sinks share it. An address in
use is logged and stops no stream.
"""

from __future__ import annotations

import os
import threading

import structlog

from headgate.connectors.extras import needs
from headgate.console.watch.live import LiveStream
from headgate.console.watch.places import TablePlace
from headgate.errors import InvalidInput
from headgate.table.table import Table

with needs():
    from headgate.console.server import Address, Console, open_console

_log = structlog.get_logger("headgate.streaming")

_lock = threading.Lock()
_consoles: dict[tuple[int, str, int], tuple[Console, list[LiveStream]]] = {}
"""By process, host and requested port."""
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_lock", threading.Lock()))


class Showing:
    """A stream shown by a console. `close` ends this, and the console with its last stream."""

    def __init__(self, key: tuple[int, str, int], console: Console, live: LiveStream) -> None:
        self._key, self._console, self._live = key, console, live

    @property
    def url(self) -> str:
        """The console's address, without a token."""
        return self._console.url

    def changed(self) -> None:
        """Tell the console that a batch was committed."""
        self._console.watcher.changed()

    def close(self) -> None:
        """Idempotent."""
        with _lock:
            held = _consoles.get(self._key)
            if held is None or held[0] is not self._console:
                return
            if self._live in held[1]:
                held[1].remove(self._live)
            last = not held[1]
            if last:
                del _consoles[self._key]
        if last and self._key[0] == os.getpid():
            self._console.close()


def check_address(host: str, port: int) -> Address:
    """The checked address. Raises InvalidInput if other machines can reach it and no token is set."""
    return Address.of(host, port)


def show(table: Table, stream: str, live: LiveStream, host: str, port: int) -> Showing | None:
    """Show a stream at an address; port 0 means any free port. None, and a log line, if the console cannot be
    opened.
    """
    key = (os.getpid(), host, port if port else -id(live))
    with _lock:
        held = _consoles.get(key)
        if held is None:
            try:
                held = (open_console((), check_address(host, port)), [])
            except InvalidInput as error:
                _log.warning("the console is not shown", why=error.what)
                return None
            _consoles[key] = held
        console, streams = held
        if live not in streams:
            streams.append(live)
        console.watcher.add_live(TablePlace(table.uri, dict(table.storage_options or {})), stream, live)
    return Showing(key, console, live)
