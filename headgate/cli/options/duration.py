"""Options that take a duration: `--min-age 2w`, `--expires 90m`, `--trigger 10`."""

from __future__ import annotations

from datetime import timedelta

import click

from headgate.durations import ALLOWED, timedelta_of


class Duration(click.ParamType):  # type: ignore[type-arg]  # click 8.2 has none
    """A duration; the command gets a timedelta."""

    name = "time"

    def __init__(self, least: timedelta = timedelta(0)) -> None:
        self._least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Raises BadParameter."""
        assert isinstance(value, str | timedelta)
        try:
            length = timedelta_of(value)
        except ValueError:
            self.fail(f"must be {ALLOWED}, got {str(value)[:40]!r}.", param, ctx)
        if length < self._least:
            self.fail(f"must be at least {self._least.total_seconds():g} seconds.", param, ctx)
        return length


DURATION = Duration()
