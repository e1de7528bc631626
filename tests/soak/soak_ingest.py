"""`headgate …` whose jobs give up sooner than after half an hour: soak_ingest.py SECONDS COMMAND …

Garbage that is younger than twice that limit must stay (R12), so that with the usual one a soak would collect nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.checkpoints import compact, flush_job, taking
from headgate.shards import generation

LIMITS = (
    (generation, "JOB_LIMIT"),
    (flush_job, "JOB_LIMIT"),
    (compact, "JOB_LIMIT"),
    (taking, "PIN_DEADLINE"),
)


@contextmanager
def jobs_give_up_after(seconds: float) -> Iterator[None]:
    """Flushes, compactions and checkpoints of this process."""
    before = [getattr(module, name) for module, name in LIMITS]
    for module, name in LIMITS:
        setattr(module, name, seconds)
    try:
        yield
    finally:
        for (module, name), usual in zip(LIMITS, before, strict=True):
            setattr(module, name, usual)


if __name__ == "__main__":
    from headgate.cli import main

    limit = float(sys.argv.pop(1))
    with jobs_give_up_after(limit):
        main()
