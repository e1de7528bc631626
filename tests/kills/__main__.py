"""`python -m tests.kills --count 10000`: exits 1 where a row was lost or is there twice."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Kill, report, write the result file."""
    from tests.kills.kills import kill
    from tests.support.evidence import RESULTS, write
    from tests.support.network import seed_of_run

    parser = argparse.ArgumentParser(description="Kill writing processes; no acknowledged row may be lost.")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--drivers", type=int, default=50, help="every so many kills one of a stream's; 0: none")
    parser.add_argument("--results", type=Path, default=os.environ.get(RESULTS), help="where the result file goes")
    given = parser.parse_args()
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    print(f"HEADGATE_SEED={seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="headgate-kills-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    report = kill(folder, given.count, seed, drivers=given.drivers, tell=lambda line: print(line, flush=True))
    facts = report.facts()
    if given.results is not None:
        rows = [{"what": what, "seen": seen} for what, seen in facts.items()]
        write(given.results, "kills", f"HEADGATE_SEED={seed} make kills COUNT={given.count}", {"Kills": rows})
    for what, seen in facts.items():
        print(f"{what:16} {seen}")
    if not report.holds:
        print("\n".join(["FAILED", *report.failures, f"Data and logs are kept in {folder}."]), file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
