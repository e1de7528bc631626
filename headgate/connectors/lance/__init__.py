"""Native Lance behind one face.

Lance's log: on each search and merge it logs the MemWAL of every table as an index without fields, a false error that
would appear on the user's terminal. Importing this package, before Lance, turns that message off, unless LANCE_LOG is
set; processes started from this one inherit it.
"""

from __future__ import annotations

import os

os.environ.setdefault("LANCE_LOG", "warn,lance::index=off")
