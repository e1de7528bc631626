"""A decoder that misbehaves once, for tests of task retries. Workers import it; a flag file says whether it was."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.streaming.decode import Decoded
from headgate.streaming.decode import json as json_decoder


@dataclass(frozen=True)
class Unsteady:
    """Decodes JSON; the first time that it meets `trigger` it does what `how` says, after earlier rows were written."""

    schema: Any
    flag: Path
    how: str
    trigger: bytes

    def decode(self, values: pa.Array) -> Decoded:
        """The rows, or trouble."""
        if self.trigger in values.to_pylist() and self._is_first():
            if self.how == "raise":
                raise RuntimeError("a task that fails once")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "hang":
                time.sleep(600)
        return json_decoder(self.schema).decode(values)

    def _is_first(self) -> bool:
        try:
            self.flag.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
