"""Maps errors of pylance to headgate's, by what their text says of the operating system or the store.

Native has one class for every store error. Only the text differs: the number that Rust prints, "(os error 28)", and its
object client's words for a broken connection or a busy server. They distinguish a full disk, missing permission and an
unreachable store from a dataset that is missing or damaged.
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
"""A broken or refused connection, a request that timed out, a server that is busy or failed."""

_DAMAGED = re.compile(r"LanceError\(IO\)|LanceError\(Arrow\): Io error")
"""A missing, empty or truncated file."""


def native_error(what: str, error: BaseException, otherwise: type[E], **where: Any) -> HeadgateError:
    """The error to raise, by the text of native's: StoreFull or PermissionDenied with the reason in the sentence,
    Transient if the store was unreachable, else `otherwise`.

    Raise it from `without_secrets(error)`.
    """
    for number in map(int, _NUMBER.findall(str(error))):
        kind = OS_ERRORS.get(number)
        if kind in (StoreFull, PermissionDenied):
            return kind(f"{what.rstrip('.')}: {os.strerror(number)}.", **where)
    return (Transient if is_away(error) else otherwise)(what, **where)


@contextmanager
def reading(what: str, **where: Any) -> Iterator[None]:
    """Raises native's read errors as `native_error` does, otherwise as StoreError.

    A ValueError about the query itself is raised unchanged.
    """
    try:
        yield
    except OSError as error:
        raise native_error(what, error, StoreError, **where) from without_secrets(error)
    except ValueError as error:
        # pyarrow raises ValueError for everything that ends a stream of batches. Errors of the query stay as they are.
        if _DAMAGED.search(str(error)) is not None and not is_away(error):
            raise native_error(what, error, StoreError, **where) from without_secrets(error)
        if not is_away(error):
            raise
        raise Transient(what, **where) from without_secrets(error)


def is_away(error: BaseException) -> bool:
    """True if the store did not answer, or was busy or failing."""
    return _AWAY.search(str(error)) is not None
