from __future__ import annotations

import socket
from pathlib import Path

from headgate.connectors.ports import free_port, is_free


def test_a_port_is_free_and_none_that_an_outgoing_connection_gets() -> None:
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 25
    assert 1024 < max(ports) < given
    port = ports.pop()
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
    assert is_free(port)
