from __future__ import annotations

import socket

from headgate.dev.ports import free_port, is_free


def test_a_port_is_free_and_none_that_an_outgoing_connection_gets_by_default() -> None:
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 25
    assert min(ports) > 1024
    assert max(ports) < 32768
    port = ports.pop()
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
    assert is_free(port)
