"""The Prometheus server for the metrics of this process's streams.

Promises: nothing listens before `serve`, which is called in the process that runs the sink, at its first batch; one
address has one server, however many sinks share it; an address in use is logged and stops no stream; a scrape reads the
current values and nothing of the table.
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
"""By process, host and requested port."""
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_lock", threading.Lock()))


def check_installed() -> None:
    """Raises InvalidInput if the package is missing."""
    if find_spec("prometheus_client") is None:
        raise InvalidInput(
            "metrics_port= needs the package prometheus-client, which is not installed.",
            advice="pip install 'headgate[metrics]', or leave out metrics_port=",
        )


@dataclass(eq=False)
class _Server:
    """One address, and the streams it serves."""

    port: int
    end: Any
    """Stops the server."""
    streams: list[StreamMetrics] = field(default_factory=list)

    def collect(self) -> Iterator[Family]:
        """All families with all series of all streams. Called by prometheus_client at a scrape."""
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
    """A stream that is served. `close` ends this, and the server with its last stream."""

    def __init__(self, key: tuple[int, str, int], server: _Server, metrics: StreamMetrics) -> None:
        self._key = key
        self._server = server
        self._metrics = metrics

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    def close(self) -> None:
        """Idempotent."""
        with _lock:
            if self._metrics in self._server.streams:
                self._server.streams.remove(self._metrics)
            last = not self._server.streams and _servers.get(self._key) is self._server
            if last:
                del _servers[self._key]
        if last and self._key[0] == os.getpid():
            self._server.end()


def serve(metrics: StreamMetrics, host: str, port: int) -> Serving | None:
    """Serve the metrics at an address; port 0 means any free port. None, and a log line, if the address is in use."""
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
