"""Faults of the network, by toxiproxy between a client and a server: connections break, stall, crawl, lose answers.

A fault belongs to a `Proxy` and lasts until it is ended. Where neither a binary nor Go is there, `why_no_toxiproxy`
says so; the in-process faults of `tests/faults` then test the same promises alone.
"""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headgate.dev.broker import LocalBroker
from headgate.dev.ports import free_port
from tests.support.servers import SOURCES, LocalServer


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to connections, as toxiproxy calls it."""

    name: str
    toxic: str
    stream: str
    """upstream: requests are hit; downstream: answers."""
    attributes: dict[str, int] = field(default_factory=dict)
    toxicity: float = 1.0
    """Of connections, the share that is hit."""


RESET = Fault("reset", "reset_peer", "upstream", {"timeout": 0})
"""Connections break when a request comes; it never arrives."""
LATENCY = Fault("latency", "latency", "downstream", {"latency": 3000})
"""Every answer takes three seconds."""
LOST = Fault("lost response", "limit_data", "downstream", {"bytes": 0})
"""The request is served, and the connection ends instead of an answer."""
SLOW = Fault("1 KB/s", "bandwidth", "upstream", {"rate": 1})
"""Requests crawl, and what they carry: entries of a WAL, records of a log."""
CRAWL = Fault("answers at 1 KB/s", "bandwidth", "downstream", {"rate": 1})
"""Answers crawl, and what they carry: records of a topic, bodies of objects."""
FAULTS = (RESET, LATENCY, LOST, SLOW, CRAWL)
"""The five that every promise is tested with."""

NOWHERE = "127.0.0.1:9"
"""Of a proxy whose server is not there yet."""


def varied(fault: Fault, chance: random.Random) -> Fault:
    """The same fault, now and then for some connections only; one that breaks them, in either direction."""
    stream = chance.choice(("upstream", "downstream")) if fault == RESET else fault.stream
    return Fault(fault.name, fault.toxic, stream, fault.attributes, chance.choice((1.0, 1.0, 0.5)))


def why_no_toxiproxy() -> str | None:
    """None where toxiproxy is there, else the reason why tests are left out, and what tests the promise instead."""
    if SOURCES["toxiproxy"].binary is not None:
        return None
    return (
        "toxiproxy is neither on PATH (toxiproxy-server) nor in the cache directory; `make test` builds it where Go is "
        "there. Lost answers, failed and late requests are tested by the stores of tests/faults alone"
    )


def seed_of_run(environment: str | None) -> int:
    """HEADGATE_SEED, else a new one; print it."""
    return int(environment) if environment else random.randrange(1 << 32)


@contextmanager
def replayable(seed: int, what: object) -> Iterator[None]:
    """The seed is printed, and is in whatever failure comes out of the block."""
    print(f"HEADGATE_SEED={seed}: {what}")
    try:
        yield
    except BaseException as error:
        raise AssertionError(f"replay with HEADGATE_SEED={seed}: {what}") from error


class Toxiproxy:
    """The proxy process and its control port. Proxies end with it."""

    def __init__(self, directory: Path) -> None:
        binary = SOURCES["toxiproxy"].binary
        assert binary is not None, why_no_toxiproxy()
        port = free_port()
        command = [str(binary), "-host", "127.0.0.1", "-port", str(port)]
        self.server = LocalServer(command, directory / "toxiproxy.log", port, {"LOG_LEVEL": "error"})
        self._ways: dict[str, dict[str, Any]] = {}

    def proxy(self, name: str, upstream: str) -> Proxy:
        """A new way to host:port, on a port that it has from now on."""
        for tries_left in reversed(range(10)):
            port = free_port()
            settings = {"name": name, "listen": f"127.0.0.1:{port}", "upstream": upstream, "enabled": True}
            try:
                self._ask("POST", "/proxies", settings)
                break
            except OSError as error:
                if "address already in use" not in str(error) or not tries_left:
                    raise
        self._ways[name] = settings
        return Proxy(self, name, port)

    def kill(self) -> None:
        """SIGKILL: every connection through it breaks, and none is taken until `start`."""
        self.server.kill()

    def start(self) -> None:
        """The process, and the ways that it had, on the ports that they had. Faults are gone."""
        self.server.start()
        for settings in self._ways.values():
            self._ask("POST", "/proxies", settings)

    def __enter__(self) -> Toxiproxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.kill()

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.endpoint + path, data, method=method)
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            raise OSError(f"toxiproxy refused {method} {path} {body}: {error.read().decode()}") from error


@dataclass(frozen=True)
class Proxy:
    """One way to a server, on which faults can be put."""

    owner: Toxiproxy = field(repr=False)
    name: str
    port: int

    @property
    def endpoint(self) -> str:
        """For HTTP."""
        return f"http://127.0.0.1:{self.port}"

    def begin(self, fault: Fault) -> None:
        """From now on, for connections that are open as well."""
        body = {
            "name": fault.toxic,
            "type": fault.toxic,
            "stream": fault.stream,
            "toxicity": fault.toxicity,
            "attributes": fault.attributes,
        }
        self.owner._ask("POST", f"/proxies/{self.name}/toxics", body)

    def end(self, fault: Fault) -> None:
        """The network is well again."""
        self.owner._ask("DELETE", f"/proxies/{self.name}/toxics/{fault.toxic}")

    def lead_to(self, upstream: str) -> None:
        """To this host:port from now on, for a server that had to know first where its proxy listens."""
        self.owner._ask("POST", f"/proxies/{self.name}", {"upstream": upstream})
        self.owner._ways[self.name]["upstream"] = upstream

    def cut(self) -> None:
        """Every connection breaks, and none is taken."""
        self.owner._ask("POST", f"/proxies/{self.name}", {"enabled": False})

    def mend(self) -> None:
        """Connections are taken again."""
        self.owner._ask("POST", f"/proxies/{self.name}", {"enabled": True})

    def remove(self) -> None:
        """It is no way any more."""
        self.owner._ask("DELETE", f"/proxies/{self.name}")
        del self.owner._ways[self.name]

    @contextmanager
    def under(self, fault: Fault) -> Iterator[None]:
        """The fault lasts as long as the block."""
        self.begin(fault)
        try:
            yield
        finally:
            self.end(fault)


@pytest.fixture(scope="session")
def toxiproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toxiproxy]:
    """One process for the run; tests make proxies with names of their own."""
    if reason := why_no_toxiproxy():
        pytest.skip(reason)
    with Toxiproxy(tmp_path_factory.mktemp("toxiproxy")) as running:
        yield running


@dataclass(frozen=True)
class ProxiedKafka:
    """A broker that is reached directly, and by a way that can be broken."""

    broker: LocalBroker
    proxy: Proxy

    @property
    def servers(self) -> str:
        """By the way that breaks; the broker keeps its clients on it."""
        return f"127.0.0.1:{self.proxy.port}"


@pytest.fixture(scope="session")
def kafka_behind_proxy(toxiproxy: Toxiproxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedKafka]:
    """One broker for all tests here."""
    proxy = toxiproxy.proxy("kafka", NOWHERE)
    with LocalBroker(tmp_path_factory.mktemp("proxied-kafka"), proxy_port=proxy.port) as broker:
        proxy.lead_to(f"127.0.0.1:{broker.behind}")
        yield ProxiedKafka(broker, proxy)
        proxy.remove()
