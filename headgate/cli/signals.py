"""Where log lines of a command that runs for long go."""

from __future__ import annotations

import logging
import sys


def quiet_logs() -> None:
    """Log lines go to stderr, from warnings on: stdout belongs to the Output."""
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
