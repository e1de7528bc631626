"""Optional packages: which extra installs each, and the error that names a missing one.

`import headgate` needs none of them. A feature imports them inside `needs()`, so that its first use says what to
install instead of raising a bare ModuleNotFoundError.
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
"""For each module the extra of pyproject.toml that installs it."""


@contextmanager
def needs() -> Iterator[None]:
    """Wrap imports. Raises MissingExtra if a package of an extra is not installed; other errors pass through."""
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
