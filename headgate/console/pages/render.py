"""Renders templates. Every value is escaped, and cleaned by `words.clean`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from headgate.console.pages import words


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("headgate.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=words.clean,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= words.FILTERS
    made.globals |= {"query": query}
    return made


def page(template: str, /, **values: Any) -> str:
    """A page as HTML."""
    return _environment().get_template(f"{template}.html").render(values)


def query(**values: Any) -> str:
    """The query string of an address, without values that are None or empty."""
    kept = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(kept)}" if kept else ""


STATIC = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "theme.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""The other files that a page loads, with their media types."""


@cache
def static(name: str) -> bytes:
    """The content of a file of STATIC."""
    return files("headgate.console").joinpath("static", name).read_bytes()
