from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent

# Here the promises that other folders check on local disk are checked on S3: tables, faults and processes are theirs.
OTHERS = ("faults", "streaming", "checkpoints", "search", "recovery", "cli", "connectors", "connectors/kafka")
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in OTHERS)]
