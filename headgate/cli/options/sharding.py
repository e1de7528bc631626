"""`--sharding "bucket(id, 4)"`: how rows are spread over shards, written as Python writes it."""

from __future__ import annotations

import ast
from collections.abc import Callable

import click

from headgate.errors import InvalidInput
from headgate.shards.sharding import Sharding, bucket, by_partition, single

EXAMPLES = '"bucket(id, 4)", "by_partition(max_shards=4, key_is_partitioned=True)" or "single()"'

_KINDS: dict[str, Callable[..., Sharding]] = {"bucket": bucket, "by_partition": by_partition, "single": single}


class ShardingParameter(click.ParamType):  # type: ignore[type-arg]  # click 8.2 has none
    """A call of `bucket`, `by_partition` or `single`; the command gets the Sharding."""

    name = "sharding"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Sharding:
        """Raises BadParameter."""
        if not isinstance(value, str):
            return value  # type: ignore[return-value]  # click gives what was converted once more
        try:
            return _called(value)
        except InvalidInput as error:
            self.fail(f"{error.what.rstrip('.')}: use {EXAMPLES}.", param, ctx)
        except (SyntaxError, TypeError, ValueError):
            self.fail(f"invalid sharding {value[:80]!r}: use {EXAMPLES}.", param, ctx)


SHARDING = ShardingParameter()


def _called(text: str) -> Sharding:
    """The value of the call. Quotes around column names are optional. Raises ValueError for anything else."""
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in _KINDS:
        raise ValueError
    named = {part.arg: _plain(part.value) for part in call.keywords if part.arg is not None}
    if len(named) != len(call.keywords):
        raise ValueError
    return _KINDS[call.func.id](*map(_plain, call.args), **named)


def _plain(part: ast.expr) -> object:
    return part.id if isinstance(part, ast.Name) else ast.literal_eval(part)
