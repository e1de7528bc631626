"""Where the makers of index segments and garbage collection meet (R20): names, relative to the table's root.

An *intent* says, before the first byte, that a segment is being made by headgate. The *outcome* is a slot that its
maker takes before it commits the segment, and garbage collection before it deletes it. Segments have random ids, so
that no slot is ever used again.
"""

from __future__ import annotations

import re
from uuid import UUID

ROOT = "_headgate/index_segments/"

_KEY = re.compile(re.escape(ROOT) + r"(?P<segment>[0-9a-f-]{36})/(?P<what>intent|outcome)")


def intent(segment: UUID | str) -> str:
    """The object that says that the segment is being made."""
    return f"{ROOT}{segment}/intent"


def outcome(segment: UUID | str) -> str:
    """The slot: committed by its maker, or deleted by a collection."""
    return f"{ROOT}{segment}/outcome"


def segment_of(key: str) -> str | None:
    """The segment that a listed key is about; None for a stray."""
    match = _KEY.fullmatch(key)
    return None if match is None else match["segment"]


def intended(key: str) -> str | None:
    """The segment whose intent this is; None for anything else."""
    match = _KEY.fullmatch(key)
    return match["segment"] if match is not None and match["what"] == "intent" else None
