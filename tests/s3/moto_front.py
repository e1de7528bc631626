"""moto with something of ours before it, which sees every request first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

Respond: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[dict[str, Any], Respond], Iterable[bytes]]


class Front(Protocol):
    """What is before moto."""

    endpoint: str

    def __call__(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]: ...


F = TypeVar("F", bound=Front)


@contextmanager
def moto_behind(make: Callable[[App], F]) -> Iterator[F]:
    """What `make` makes of moto, as a server while it runs. All of a process share moto's one state."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    made = make(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, made, threaded=True, request_handler=MotoRequestHandler)
    made.endpoint = f"http://127.0.0.1:{server.port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
