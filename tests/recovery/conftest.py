from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent

# Topics whose content is known, and decoders that misbehave, are those of the streaming tests.
OTHERS = ("streaming", "faults", "connectors/kafka")
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in OTHERS)]
