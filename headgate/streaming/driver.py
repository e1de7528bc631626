"""StreamDriver, for those who know it from the streaming side; it lives in `headgate.checkpoints.stream.driver`."""

from __future__ import annotations

from headgate.checkpoints.stream.driver import Planned, StreamDriver

__all__ = ["Planned", "StreamDriver"]
