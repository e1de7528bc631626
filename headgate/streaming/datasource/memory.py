"""What a running query remembers of its stream between batches, where no process of it lives that long.

Spark plans each batch of a Python data source in whatever worker is at hand, and tells it nothing of the run. A
driver that was paused must know afterwards that it held the stream before, or it would take it back from its
successor. So the ids of its open record and of its table are kept in a file of the Spark application: it lives on the
driver's host, as long as the application, and no longer.

Promise: losing the file loses no row and shows none twice. It only lets a driver take the stream over once more.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_FOLDER = ".headgate-streams"
"""Below Spark's own folder of the application, which is on Python's path: no package may have this name."""


class HeldStream(NamedTuple):
    """What a run knows of its stream."""

    open_id: str
    """Of the open record under which it writes."""
    table_id: str
    """Of the table that it writes to: the place alone does not tell it from one that was made anew (R23)."""
    changed: int
    """The schema record after which the columns of its last batch were read (R22)."""


@dataclass(frozen=True)
class Hold:
    """Where this application's run of a query keeps what it knows of its stream."""

    path: Path

    @classmethod
    def of(cls, root: str, query_id: str, table_uri: str, stream: str) -> Hold:
        """`root` is the folder of the Spark application."""
        return cls(_folder(root, query_id) / _name(table_uri, stream))

    def held(self) -> HeldStream | None:
        """What the run's last batch left. None: this run has not opened the stream yet."""
        try:
            return HeldStream(*json.loads(self.path.read_text()))
        except FileNotFoundError:
            return None

    def keep(self, held: HeldStream) -> None:
        """Written anew for every batch, so that what tidies temporary folders by age finds it young."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(held))
        fresh.replace(self.path)

    def forget(self) -> None:
        """The run lost the stream, and ends: whoever comes next was started on purpose."""
        self.path.unlink(missing_ok=True)


def forget_runs(root: str, query_id: str) -> None:
    """A run of the query begins: what earlier runs of this application held is not its own."""
    shutil.rmtree(_folder(root, query_id), ignore_errors=True)


def _folder(root: str, query_id: str) -> Path:
    return Path(root) / _FOLDER / _name(query_id)


def _name(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]
