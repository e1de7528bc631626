"""Removes credentials from messages: every credential that this process was given, and what servers repeat of them.

Credentials are kept in memory when options are checked and when a profile gives new ones. So they can be removed from
text of other origin (pylance, a server's response) without knowing whose options it was.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable

_KEPT = 256
"""Maximum number of credentials kept: keys that are renewed for years must not fill the memory."""
_SHORTEST = 4
"""Shorter ones are test placeholders; removing them would damage ordinary text."""
_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_USER = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)(?:[^/?#@:\s]*:[^?\s]*@|[^/?#@\s]*@)")
_REPEATED = re.compile(r"<(AWSAccessKeyId|Token-0)>[^<]*<")
"""S3 repeats a rejected key or token here."""

_known: OrderedDict[str, None] = OrderedDict()
_lock = threading.Lock()


def remember(secrets: Iterable[str | None]) -> None:
    """From now on `scrubbed` removes these."""
    with _lock:
        for secret in secrets:
            if secret and len(secret) >= _SHORTEST:
                _known[secret] = None
                _known.move_to_end(secret)
        while len(_known) > _KEPT:
            _known.popitem(last=False)


def redact(uri: str) -> str:
    """The URI without user, password and query string, for logs and errors. Plain paths stay unchanged."""
    if "://" not in uri:
        return uri
    return _USER.sub(r"\1", uri).partition("?")[0]


def scrubbed(text: str) -> str:
    """The text without known credentials, and without users and passwords in URIs."""
    with _lock:
        known = [*_known]
    known += [value for name in _ENVIRONMENT if len(value := os.environ.get(name, "")) >= _SHORTEST]
    # The longest first: a secret may contain another one.
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _REPEATED.sub(r"<\1>***<", _USER.sub(r"\1", text))


def without_secrets(error: BaseException) -> BaseException:
    """The error, for use as a cause: a copy without credentials if its text contains one."""
    text = str(error)
    if (clean := scrubbed(text)) == text:
        return error
    try:
        return type(error)(clean)
    except Exception:  # a class that takes other arguments
        return Exception(f"{type(error).__name__}: {clean}")
