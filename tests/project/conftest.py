from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent

# Streams of other folders run in containers as well.
sys.path[:0] = [str(HERE), str(HERE.parent / "streaming"), str(HERE.parent / "connectors" / "kafka")]
