"""The counts of this process's streams, for Prometheus to scrape.

Promises: nothing listens before `serve`, which is called in the process that runs the sink, at its first batch; one
address has one server, however many sinks share it; an address that is taken is logged and stops no
stream; the values of a scrape are read when it comes. Looks read nothing of the table.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import structlog

from headgate.errors import InvalidInput
from headgate.streaming.observe.metrics import METRICS, Metric, StreamMetrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_log = structlog.get_logger("headgate.streaming")

_COMMON = ("table", "stream")

_lock = threading.Lock()
_servers: dict[tuple[int, str, int], _Server] = {}
"""By process, host and the port that was asked for."""
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_lock", threading.Lock()))


def check_installed() -> None:
    """Raises InvalidInput where the package is missing."""
    if find_spec("prometheus_client") is None:
        raise InvalidInput(
            "metrics_port= needs the package prometheus-client, which is not installed.",
            advice="pip install 'headgate[metrics]', or leave out metrics_port=",
        )


@dataclass(eq=False)
class _Server:
    """One address, and whose counts it shows."""

    port: int
    end: Any
    """Stops it."""
    streams: list[StreamMetrics] = field(default_factory=list)

    def collect(self) -> Iterator[Family]:
        """All families with all series of all streams. What prometheus_client calls at a scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}

        def family(metric: Metric) -> Any:
            return kinds[metric.kind](metric.name, metric.doc, labels=[*_COMMON, *metric.labels])

        families = {name: family(metric) for name, metric in METRICS.items()}
        with _lock:
            streams = list(self.streams)
        for stream in streams:
            for sample in stream.samples():
                labels = [stream.table, stream.stream, *sample.labels]
                if isinstance(sample.value, tuple):
                    buckets, total = sample.value
                    families[sample.metric.name].add_metric(labels, list(buckets), total)
                else:
                    families[sample.metric.name].add_metric(labels, sample.value)
        yield from families.values()


class Serving:
    """A stream whose counts are shown. `close` ends that, and the server with the last of its streams."""

    def __init__(self, key: tuple[int, str, int], server: _Server, metrics: StreamMetrics) -> None:
        self._key = key
        self._server = server
        self._metrics = metrics

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def close(self) -> None:
        """Twice equals once."""
        with _lock:
            if self._metrics in self._server.streams:
                self._server.streams.remove(self._metrics)
            last = not self._server.streams and _servers.get(self._key) is self._server
            if last:
                del _servers[self._key]
        if last and self._key[0] == os.getpid():
            self._server.end()


def serve(metrics: StreamMetrics, host: str, port: int) -> Serving | None:
    """Show the counts at an address; port 0 is any free one. None where it is not free: the log says so."""
    key = (os.getpid(), host, port if port else -id(metrics))
    with _lock:
        server = _servers.get(key)
        if server is None:
            try:
                server = _started(host, port)
            except OSError as error:
                _log.warning(
                    "metrics are not served: binding to the address failed", host=host, port=port, why=str(error)
                )
                return None
            _servers[key] = server
        if metrics not in server.streams:
            server.streams.append(metrics)
    return Serving(key, server, metrics)


def _started(host: str, port: int) -> _Server:
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    http, thread = start_http_server(port, host, registry)

    def end() -> None:
        http.shutdown()
        http.server_close()
        thread.join(5)

    server = _Server(http.server_port, end)
    registry.register(server)
    return server
