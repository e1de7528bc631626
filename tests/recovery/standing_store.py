"""A store on local disk whose user, if it is a task, stands still after its next WAL entry."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from headgate.connectors.objects.local import LocalStore
from headgate.connectors.objects.port import Bytes


class StandingStore(LocalStore):
    """While the file `armed` is there, the next entry of a task renames it to `reached`, and the task stands still."""

    def __init__(self, uri: str, armed: Path) -> None:
        super().__init__(uri)
        self._armed = armed
        self._in_task = False

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        # What was sent to another process is a task's.
        self._in_task = True

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """As the store does, and then perhaps nothing more."""
        super().put_if_absent(key, data)
        if self._in_task and "/wal/" in key:
            try:
                self._armed.rename(self._armed.with_name("reached"))
            except FileNotFoundError:
                return
            while True:
                signal.pause()
