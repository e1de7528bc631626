"""The runbook's section for an error, as in the docs, and the error's own text. Nothing is downloaded."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from headgate import errors
from headgate.errors import HeadgateError, NotFound

_HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@cache
def _sections() -> dict[str, str]:
    """Every section of the runbook by its heading."""
    text = files("headgate.console").joinpath("static", "runbook.md").read_text()
    parts = _HEADING.split(text)
    return {name: _LINK.sub(r"\1", body).strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def runbook_page(name: str) -> dict[str, Any]:
    """The page of an error class or a heading. Raises NotFound."""
    found = getattr(errors, name, None) if name.isidentifier() else None
    is_error = isinstance(found, type) and issubclass(found, HeadgateError)
    section = _sections().get(name)
    if section is None and not is_error:
        raise NotFound("The runbook has no such page.", advice="see docs/operations/runbook.md")
    return {
        "name": name,
        "doc": (found.__doc__ or "").strip() if is_error and found is not None else "",
        "do": found.next_step if is_error and found is not None else "",
        "section": section,
        "headings": sorted(_sections()),
    }


def page_of(text: str) -> str | None:
    """The runbook's page for an error text that begins with its class; None if there is none."""
    name = text.partition(":")[0]
    return name if name in _sections() else None
