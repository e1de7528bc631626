"""State of a running query between batches, for queries without a long-lived process.

Spark plans each batch of a Python data source in any available worker, without information about the run. A driver that
was paused must know that it held the stream before; otherwise it would take the stream back from its successor. So the
ids of its open record and of its table are kept in a file of the Spark application: the file is on the driver's host
and lives as long as the application.

Promise: if the file is lost, no row is lost or duplicated; a driver may only take over the stream once more.
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
    """A run's state of its stream."""

    open_id: str
    """The id of the open record under which it writes."""
    table_id: str
    """The id of the table that it writes to: the URI alone does not distinguish a re-created table (R23)."""
    changed: int
    """The schema record after which the columns of its last batch were read (R22)."""


@dataclass(frozen=True)
class Hold:
    """The file with this state, per run of a query in this application."""

    path: Path

    @classmethod
    def of(cls, root: str, query_id: str, table_uri: str, stream: str) -> Hold:
        """`root` is the folder of the Spark application."""
        return cls(_folder(root, query_id) / _name(table_uri, stream))

    def held(self) -> HeldStream | None:
        """The state that the run's last batch saved. None if this run has not opened the stream yet."""
        try:
            return HeldStream(*json.loads(self.path.read_text()))
        except FileNotFoundError:
            return None

    def keep(self, held: HeldStream) -> None:
        """Save the state. Rewritten for every batch, so that cleaners of temporary folders see it as recent."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(held))
        fresh.replace(self.path)

    def forget(self) -> None:
        """Delete the state: the run lost the stream and ends; the next run is started on purpose."""
        self.path.unlink(missing_ok=True)


def forget_runs(root: str, query_id: str) -> None:
    """Delete the state of earlier runs of this application, at the start of a run."""
    shutil.rmtree(_folder(root, query_id), ignore_errors=True)


def _folder(root: str, query_id: str) -> Path:
    return Path(root) / _FOLDER / _name(query_id)


def _name(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]
