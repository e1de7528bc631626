"""From a schedule that breaks a promise to the shortest one found that breaks the same, as a table of who did what."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tests.simulation.scheduler import Deviation, Event
from tests.simulation.world import Outcome, World

LONGEST = 40
"""Rows of the table, wherever that is possible."""
TRIES = 600
"""Schedules that shrinking may take."""
_READS = ("get ", "head ", "list ")


def shrunk(outcome: Outcome) -> Outcome:
    """Parties are left out first, then deviations: halves, quarters, single ones, as long as the promise breaks."""
    assert outcome.violation is not None
    left = TRIES

    def broken(deviations: Sequence[Deviation], without: frozenset[int]) -> Outcome | None:
        nonlocal left
        left -= 1
        again = World(outcome.seed, list(deviations), without, outcome.cast).run()
        return again if again.violation is not None and _kind(again) == _kind(outcome) else None

    best = outcome
    for place in range(len(outcome.cast)):
        best = broken(best.deviations, best.without | {place}) or best
    size = max(1, len(best.deviations) // 2)
    while left > 0:
        at, found = 0, False
        while at < len(best.deviations) and left > 0:
            fewer = [*best.deviations[:at], *best.deviations[at + size :]]
            shorter = broken(fewer, best.without)
            if shorter is not None:
                best, found = shorter, True
            else:
                at += size
        if size == 1 and not found:
            break
        size = max(1, size // 2)
    return best


def table(outcome: Outcome) -> str:
    """The history, a row for each turn: who, and what it did; reads are counted."""
    rows = [(who, _told(list(turn))) for who, turn in groupby(outcome.history, lambda event: event.who)]
    width = max(len(who) for who, _ in rows)
    lines = [f"{number:3}  {who:{width}}  {what}" for number, (who, what) in enumerate(rows, 1)]
    return "\n".join([f"seed {outcome.seed}: {outcome.violation}", *lines])


def turns(outcome: Outcome) -> int:
    """Rows of the table."""
    return sum(1 for _ in groupby(outcome.history, lambda event: event.who))


def _told(turn: Sequence[Event]) -> str:
    """Writes, faults and the last pause point; between them the number of reads."""
    parts: list[str] = []
    for is_read, events in groupby(turn, lambda event: event.what.startswith(_READS)):
        found = list(events)
        parts += [f"{len(found)} reads"] if is_read else [event.what for event in found]
    return ", ".join(parts)


def _kind(outcome: Outcome) -> str:
    return (outcome.violation or "").split(":")[0]
