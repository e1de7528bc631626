"""What an installation may lack: packages that come with an extra, and the error that names it.

`import headgate` needs none of them. A feature that does is entered through `needs()`, so that its first use says
what to install, and not that some module has no name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headgate.errors import MissingExtra

EXTRAS = {
    "confluent_kafka": "kafka",
    "pyspark": "spark",
    "pandas": "spark",
    "botocore": "s3",
    "s3fs": "s3",
    "prometheus_client": "metrics",
    "delta": "delta",
    "jinja2": "ui",
    "markupsafe": "ui",
    "starlette": "ui",
    "uvicorn": "ui",
}
"""Modules by the extra of pyproject.toml that brings them."""


@contextmanager
def needs() -> Iterator[None]:
    """Around imports. Raises MissingExtra if a package of an extra is not there; other errors go through."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        raise MissingExtra(
            f"This needs {package}, which is not installed.",
            extra=extra,
            advice=f"pip install 'headgate[{extra}]'; nothing was written",
        ) from error
