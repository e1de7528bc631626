"""Maps errors of file systems and of obstore to this package's errors.

- Unlisted errnos (EIO, ESTALE, ENOMEM, EBUSY …) become Transient: the outcome is unknown, and a retry is safe because
  it starts with a new file.
- obstore raises GenericError for a 400, 416, 429, 5xx, a refused connection and a timeout. All become Transient, even a
  permanent 400; the cause has the response.
- obstore raises AlreadyExistsError for both 409 and 412; the S3 store tells them apart by a HEAD.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from headgate.connectors.objects.secrets import scrubbed
from headgate.errors import (
    AlreadyExists,
    HeadgateError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    StoreFull,
    Transient,
)

ErrorTable = Mapping[int, type[HeadgateError]]

OS_ERRORS: ErrorTable = {
    errno.EEXIST: AlreadyExists,
    errno.ENOENT: NotFound,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EROFS: PermissionDenied,
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
    errno.EFBIG: StoreFull,
    errno.EMFILE: StoreFull,
    errno.ENFILE: StoreFull,
    errno.ENOTDIR: InvalidInput,
    errno.EISDIR: InvalidInput,
    errno.ENAMETOOLONG: InvalidInput,
    errno.ELOOP: InvalidInput,
    errno.EXDEV: InvalidInput,
}

REASON_CHARS = 400
"""Maximum length of the reason in a message; the cause has the whole text."""

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
"""No object has that name. A folder may have it, or a file may be in the place of a folder."""
READS: ErrorTable = dict.fromkeys(ABSENT, NotFound)
"""For operations that read an object."""
PUTS: ErrorTable = {errno.ENOENT: Transient}
"""For operations that create the folder first: it was removed meanwhile, and a retry creates it again."""


@contextmanager
def os_errors(verb: str, store: str, key: str, special: ErrorTable | None = None) -> Iterator[None]:
    """Raise this package's error for an OSError, which becomes its cause. `special` takes precedence over OS_ERRORS."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        kind = (special or {}).get(number) or OS_ERRORS.get(number, Transient)
        reason = os.strerror(number) if number else type(error).__name__
        raise kind(f"{verb} failed: {reason}.", store=store, key=key) from error


@cache
def _obstore_errors() -> tuple[tuple[type[BaseException], type[HeadgateError]], ...]:
    from obstore import exceptions as raised

    return (
        (FileNotFoundError, NotFound),
        (raised.AlreadyExistsError, AlreadyExists),
        (raised.PreconditionError, AlreadyExists),
        (raised.PermissionDeniedError, PermissionDenied),
        (raised.UnauthenticatedError, PermissionDenied),
        (raised.InvalidPathError, InvalidInput),
        (raised.NotSupportedError, InvalidInput),
        (raised.UnknownConfigurationKeyError, InvalidInput),
        (ValueError, InvalidInput),
        (raised.BaseError, Transient),
    )


def obstore_error(error: Exception, verb: str, store: str, key: str) -> HeadgateError:
    """This package's error for an error of obstore; its cause is a copy without credentials.

    Raise it outside the except block, otherwise Python attaches the original error again. An unknown error is raised
    here, unchanged.
    """
    for raised, kind in _obstore_errors():
        if isinstance(error, raised):
            clean = scrubbed(str(error))
            meant = kind(f"{verb} failed: {_reason(clean)}", store=store, key=key)
            meant.__cause__ = type(error)(clean)
            return meant
    raise error


def _reason(text: str) -> str:
    """The first line of obstore's text, as the end of a sentence; it has the request's address and the retries."""
    line = " ".join((text.strip().splitlines() or [""])[0].split())
    line = line if len(line) <= REASON_CHARS else line[: REASON_CHARS - 1] + "…"
    return (line or "no reason was given").rstrip(".") + "."
