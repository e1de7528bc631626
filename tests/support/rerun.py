"""Run pytest with the arguments given, and what failed once more, alone. `make test` runs this.

A test that passes alone does not fail the run. It is named in a section "flaky", right above pytest's closing line, so
that the next change mends it. Many failures are no flakiness: then nothing is run again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

RERUN = "HEADGATE_RERUN"
"""Set for the second run; `conftest.py` then names what passes in it."""

MOST = 10
"""Failures that are tried again."""

GROUP = re.compile(r"@[a-z]+$")
"""xdist names a test's group behind its id."""

FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: list[str]) -> int:
    """The exit code of the first run, or of the second where there is one."""
    pytest = [sys.executable, "-m", "pytest"]
    FAILED.unlink(missing_ok=True)
    code = subprocess.run([*pytest, *arguments]).returncode
    failed = sorted(GROUP.sub("", name) for name in json.loads(FAILED.read_text())) if FAILED.exists() else []
    if code != 1 or not 0 < len(failed) <= MOST:
        return code
    print(f"\n{len(failed)} failed; run once more, alone:", *failed, sep="\n  ", flush=True)
    return subprocess.run([*pytest, *failed], env={**os.environ, RERUN: "1"}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
