"""Log output of long-running commands."""

from __future__ import annotations

import logging
import sys


def quiet_logs() -> None:
    """Log warnings and errors to stderr: stdout belongs to the Output."""
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
