"""What an error of pylance means here, where it names what the operating system or the store said.

Native has one class for everything that a store refuses. The number that Rust prints behind it, "(os error 28)", and
how its client for objects tells of a connection or of a busy server are the only facts there are: they tell a full
disk, a forbidden one and a store that is away from a dataset that is missing or damaged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from headgate.connectors.objects.errors import OS_ERRORS
from headgate.connectors.objects.secrets import without_secrets
from headgate.errors import HeadgateError, PermissionDenied, StoreError, StoreFull, Transient

E = TypeVar("E", bound=HeadgateError)

_NUMBER = re.compile(r"\(os error (\d+)\)")
_AWAY = re.compile(r"HTTP error: |non-2xx status code: (?:429|5\d\d)\b")
"""A connection that broke or was not taken, a request that took too long, a server that is busy or failed."""

_DAMAGED = re.compile(r"LanceError\(IO\)|LanceError\(Arrow\): Io error")
"""A file that is missing, empty or cut."""


def native_error(what: str, error: BaseException, otherwise: type[E], **where: Any) -> HeadgateError:
    """StoreFull or PermissionDenied, with the reason in its sentence, Transient if the store was away, by what the text
    tells; `otherwise` if it tells none of them.

    Raise it from `without_secrets(error)`.
    """
    for number in map(int, _NUMBER.findall(str(error))):
        kind = OS_ERRORS.get(number)
        if kind in (StoreFull, PermissionDenied):
            return kind(f"{what.rstrip('.')}: {os.strerror(number)}.", **where)
    return (Transient if is_away(error) else otherwise)(what, **where)


@contextmanager
def reading(what: str, **where: Any) -> Iterator[None]:
    """What native meets while it reads is an error of ours: as `native_error`, otherwise StoreError."""
    try:
        yield
    except OSError as error:
        raise native_error(what, error, StoreError, **where) from without_secrets(error)
    except ValueError as error:
        # So pyarrow calls all that ends a stream of batches; what is wrong with the question is raised as it is.
        if _DAMAGED.search(str(error)) is not None and not is_away(error):
            raise native_error(what, error, StoreError, **where) from without_secrets(error)
        if not is_away(error):
            raise
        raise Transient(what, **where) from without_secrets(error)


def is_away(error: BaseException) -> bool:
    """Whether the store did not answer, or not now."""
    return _AWAY.search(str(error)) is not None
