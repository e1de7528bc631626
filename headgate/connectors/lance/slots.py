"""Object names, relative to the table's root, by which builders of index segments and garbage collection agree (R20).

A builder puts an *intent* before a segment's first byte. The *outcome* is a slot: the builder takes it before it
commits the segment, garbage collection before it deletes the segment, and only one of them can. Segments have random
ids, so no slot is ever used again.
"""

from __future__ import annotations

import re
from uuid import UUID

ROOT = "_headgate/index_segments/"

_KEY = re.compile(re.escape(ROOT) + r"(?P<segment>[0-9a-f-]{36})/(?P<what>intent|outcome)")


def intent(segment: UUID | str) -> str:
    """The object that says that the segment is being built."""
    return f"{ROOT}{segment}/intent"


def outcome(segment: UUID | str) -> str:
    """The slot: whether the builder may commit the segment or garbage collection may delete it."""
    return f"{ROOT}{segment}/outcome"


def segment_of(key: str) -> str | None:
    """The segment that a listed key belongs to; None for a stray object."""
    match = _KEY.fullmatch(key)
    return None if match is None else match["segment"]


def intended(key: str) -> str | None:
    """The segment whose intent this key is; None for any other key."""
    match = _KEY.fullmatch(key)
    return match["segment"] if match is not None and match["what"] == "intent" else None
