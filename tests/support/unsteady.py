"""A decoder that misbehaves once, for tests of task retries. Workers import it; a flag file says whether it was."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa

from headgate.streaming.decode.api import Decoded, Decoder


@dataclass(frozen=True)
class Unsteady:
    """Decodes as another does; the first time that it meets `trigger` it does what `how` says:

    raise; kill (this worker); orphan (kill the executor, and stay).
    """

    inner: Decoder
    flag: Path
    how: str
    trigger: bytes

    @property
    def schema(self) -> pa.Schema:
        """The other's."""
        return self.inner.schema

    def decode(self, values: pa.Array) -> Decoded:
        """The rows, or trouble."""
        if self.trigger in values.to_pylist():
            if self._is_first():
                self._misbehave()
            else:
                self._second.touch()
        return self.inner.decode(values)

    def _misbehave(self) -> None:
        if self.how == "raise":
            raise RuntimeError("a task that fails once")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        # The worker outlives its executor, and goes on when the next attempt has come as far as this one.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        next(one for one in psutil.Process().parents() if one.name() == "java").kill()
        while not self._second.exists():
            time.sleep(0.005)

    @property
    def _second(self) -> Path:
        return self.flag.with_name(f"{self.flag.name}, second attempt")

    def _is_first(self) -> bool:
        try:
            self.flag.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
