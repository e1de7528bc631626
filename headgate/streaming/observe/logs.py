"""Log lines of a stream: one per batch at INFO; every line has the query, the batch and the stream.

headgate logs with structlog and does not configure it: an application's own configuration applies. `configure_logs` is
for applications without one.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO

import structlog

from headgate.errors import InvalidInput

Form = Literal["text", "json"]


def configure_logs(form: Form = "text", *, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send log lines from `level` on to `stream` (stderr): as text for people, or one JSON object a line.

    Raises InvalidInput for an unknown form or level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None or form not in ("text", "json"):
        raise InvalidInput(f"The log format must be text or json and the level DEBUG, INFO …, got {form!r}, {level!r}.")
    renderer: Any = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(stream or sys.stderr),
        cache_logger_on_first_use=False,
    )
