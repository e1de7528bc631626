"""A store, on local disk or S3, whose user, if it is a task, stands still after its next WAL entry."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from headgate.connectors.objects.local import LocalStore
from headgate.connectors.objects.port import Bytes, ObjectStore
from headgate.connectors.objects.s3.store import S3Store


class Standing(ObjectStore):
    """While the file `armed` is there, the next entry of a task renames it to `reached`, and the task stands still."""

    armed: Path
    in_task = False

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        # What was sent to another process is a task's.
        self.in_task = True

    def put_next(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """As the store does, and then perhaps nothing more."""
        super().put_next(key, data)
        if self.in_task and "/wal/" in key:
            try:
                self.armed.rename(self.armed.with_name("reached"))
            except FileNotFoundError:
                return
            while True:
                signal.pause()


class StandingLocal(Standing, LocalStore):
    """On local disk."""


class StandingS3(Standing, S3Store):
    """On S3, with credentials in the environment."""


def standing_store(uri: str, armed: Path) -> ObjectStore:
    """The store at that place."""
    store = StandingS3(uri) if uri.startswith("s3://") else StandingLocal(uri)
    store.armed = armed
    return store
