"""Lance's own log. On each search and merge it logs the MemWAL of every table as an index without fields: a false
error, which would appear on the user's terminal.
"""

from __future__ import annotations

import os

SETTING = "warn,lance::index=off"


def quiet_lance() -> None:
    """Turn off that message, unless LANCE_LOG is set. Has no effect after the process has imported Lance."""
    os.environ.setdefault("LANCE_LOG", SETTING)
