"""Ports on loopback for servers that this machine runs."""

from __future__ import annotations

import random
import socket

_OWN = range(10_000, 32_000)
"""Below those that Linux by default gives to outgoing connections. One of these could take a server's port while the
server is away, and a client that tries to reach it could even connect to itself: the server would not come back."""


def free_port() -> int:
    """A port that nobody uses now."""
    for port in random.SystemRandom().sample(_OWN, 100):
        if is_free(port):
            return port
    raise OSError("Of a hundred ports on 127.0.0.1 none is free.")


def is_free(port: int) -> bool:
    """True if a server could listen there. One whose last connections are still closing is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
