from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent

# Topics whose content is known, tables without Spark, and driver processes are those of other tests.
OTHERS = ("streaming", "checkpoints", "faults", "recovery", "connectors/kafka")
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in OTHERS)]
