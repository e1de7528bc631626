"""Ports on loopback for servers that this machine runs."""

from __future__ import annotations

import random
import socket

_OWN = range(10_000, 32_000)
"""Below Linux's default range for outgoing connections. Such a connection could take a server's port while the server
is down, and a client could even connect to itself: the server could then not start again."""


def free_port() -> int:
    """A port that is free now."""
    for port in random.SystemRandom().sample(_OWN, 100):
        if is_free(port):
            return port
    raise OSError("Of a hundred ports on 127.0.0.1 none is free.")


def is_free(port: int) -> bool:
    """True if a server could listen there. A port whose last connections are still closing counts as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
