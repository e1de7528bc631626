"""`python -m tests.soak --minutes 30`: see docs/internals/faults.md. Exits 1 where a promise broke, or memory grows."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run, print the page, keep it."""
    from tests.soak.soak import soak
    from tests.support.evidence import RESULTS, write
    from tests.support.network import seed_of_run, why_no_toxiproxy
    from tests.support.servers import SOURCES

    parser = argparse.ArgumentParser(description="A stream under fire; in the end the table must be the topic.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=400, help="records a second")
    parser.add_argument("--table", choices=["keyed", "append"], help="else the seed decides")
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "soak", help="where the page goes")
    parser.add_argument("--results", type=Path, default=os.environ.get(RESULTS), help="where the result file goes")
    given = parser.parse_args()
    reason = why_no_toxiproxy()
    if SOURCES["versitygw"].binary is None:
        reason = "versitygw is neither on PATH nor in the cache directory; `make soak` builds it where Go is there"
    if reason:
        print(f"No soak: {reason}.", file=sys.stderr)
        return 2
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    print(f"HEADGATE_SEED={seed}", flush=True)
    # Objects and topics by the thousand: in memory where there is room.
    room = "/dev/shm" if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 8 << 30 else None
    folder = Path(tempfile.mkdtemp(prefix="headgate-soak-", dir=room))
    keyed = None if given.table is None else given.table == "keyed"
    report = soak(
        folder, given.minutes * 60, seed, keyed=keyed, rate=given.rate, tell=lambda line: print(line, flush=True)
    )
    given.report.mkdir(parents=True, exist_ok=True)
    for name in ("soak.md", "soak.json", "memory.svg"):
        shutil.copy(folder / name, given.report / name)
    if given.results is not None:
        command = f"HEADGATE_SEED={seed} make soak MINUTES={given.minutes:g}"
        write(given.results, "soak", command, {report.title: report.facts()})
    print(report.page())
    print(f"The report is in {given.report}.")
    if not report.holds or report.growing:
        print(f"FAILED: {report.growing or 'see above'}. Logs and data are kept in {folder}.", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
