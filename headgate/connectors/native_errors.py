"""What an error of pylance means here, where it names what the operating system said.

Native has one class for everything that a file system refuses. The number that Rust prints behind it, "(os error 28)",
is the only fact there is: it tells a full disk and a forbidden one from a store that is away.
"""

from __future__ import annotations

import os
import re
from typing import Any, TypeVar

from headgate.connectors.objects.errors import OS_ERRORS
from headgate.errors import PermissionDenied, StoreError, StoreFull

E = TypeVar("E", bound=StoreError)

_NUMBER = re.compile(r"\(os error (\d+)\)")


def native_error(what: str, error: BaseException, otherwise: type[E], **where: Any) -> StoreError:
    """StoreFull or PermissionDenied, with the reason in its sentence, where the text tells one; `otherwise` if not.

    Raise it from `bare(error)`.
    """
    for number in map(int, _NUMBER.findall(str(error))):
        kind = OS_ERRORS.get(number)
        if kind in (StoreFull, PermissionDenied):
            return kind(f"{what.rstrip('.')}: {os.strerror(number)}.", **where)
    return otherwise(what, **where)
