"""What every command about a table takes."""

from __future__ import annotations

from typing import TypeVar

from headgate.cli.options.pairs import key_value_option

F = TypeVar("F")


def storage_option(command: F) -> F:
    """`--storage-option KEY=VALUE`, many times; the command gets a dict as its argument `storage_options`."""
    return key_value_option(
        "--storage-option",
        "storage_options",
        "An option of S3 under pylance's name (region, endpoint, access_key_id …), for a separate WAL store with wal. "
        "before it; may be repeated.",
    )(command)
