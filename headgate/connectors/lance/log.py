"""Lance's own log. It calls the MemWAL of every table an index without fields, with each search and merge: an error
that is none, on the terminal of whoever looks on.
"""

from __future__ import annotations

import os

SETTING = "warn,lance::index=off"


def quiet_lance() -> None:
    """Unless somebody has set the log. Counts only before Lance is first imported in this process."""
    os.environ.setdefault("LANCE_LOG", SETTING)
