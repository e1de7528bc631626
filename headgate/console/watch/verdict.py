"""The state of a stream or a table in one word, and the reasons. Pure.

The worst state decides, in the order of WORST_FIRST. Nothing is "fine" that was not read: if the last look failed, or
nothing is known yet, the word is "unknown".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Word = Literal["attention", "fenced", "behind", "stopped", "unknown", "fine"]

WORST_FIRST: tuple[Word, ...] = ("attention", "fenced", "behind", "unknown", "stopped", "fine")

SHOWN: dict[Word, str] = {
    "attention": "needs attention",
    "fenced": "fenced",
    "behind": "behind",
    "unknown": "not known",
    "stopped": "stopped",
    "fine": "fine",
}

BEHIND_SECONDS = 60.0
"""Rows that wait in Kafka for longer than this are a lag; the others belong to the next batches."""
SILENT_SECONDS = 300.0
"""After so long without a batch and without a report of its driver, a stream counts as stopped."""
STALE_SECONDS = 180.0
"""What was read longer ago than this is not shown as the current state."""
MANY_LETTERS = 0.01
"""If a larger share of the last batches' records are dead letters, the stream needs attention."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A word, and why."""

    word: Word
    why: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The word as it is displayed."""
        return SHOWN[self.word]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """What is known about one stream. None means unknown."""

    error: str | None = None
    """Why the last look failed."""
    seen_ago: float | None = None
    """Seconds since the last look."""
    batches: int = 0
    """Batches that are known to be committed."""
    committed_ago: float | None = None
    """Seconds since the last batch."""
    heard_ago: float | None = None
    """Seconds since its driver took over, or last reported the state of maintenance."""
    is_here: bool = False
    """True if its driver runs in this process."""
    failure: str | None = None
    """The error that stopped it, if its driver ran in this process."""
    lag_rows: int | None = None
    lag_seconds: float | None = None
    kafka_error: str | None = None
    taken_over: str | None = None
    """A sentence about a shard that another driver has claimed since."""
    released: bool = False
    """True if all of its shards were released, as by a clean stop."""
    failing: tuple[str, ...] = ()
    """Maintenance jobs that fail."""
    delayed: str | None = None
    """Why batches wait."""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Problems of its shards."""
    records: int = 0
    dead_letters: int = 0
    """Dead letters of the last batches; `records` are their rows."""


def stream_verdict(facts: StreamFacts) -> Verdict:
    """The verdict of a stream: the worst word, and every reason, the worst first."""
    found = list(_reasons(facts))
    if not found:
        return Verdict("fine", (_fine(facts),))
    found.sort(key=lambda one: WORST_FIRST.index(one[0]))
    return Verdict(found[0][0], tuple(why for _, why in found))


def table_verdict(streams: Sequence[Verdict], problems: Sequence[str], error: str | None, *, looked: bool) -> Verdict:
    """The verdict of a table: the worst of its streams and its shards."""
    if error is not None:
        return Verdict("unknown", (error,))
    if not looked:
        return Verdict("unknown", ("it has not been looked at yet",))
    if problems:
        return Verdict("attention", tuple(problems))
    if not streams:
        return Verdict("fine", ("no stream writes to it",))
    return min(streams, key=lambda one: WORST_FIRST.index(one.word))


def _reasons(facts: StreamFacts) -> list[tuple[Word, str]]:
    found: list[tuple[Word, str]] = [("attention", one) for one in facts.problems]
    if facts.error is not None:
        found.append(("unknown", facts.error))
    elif facts.seen_ago is None or facts.seen_ago > STALE_SECONDS:
        ago = "" if facts.seen_ago is None else f"; what is shown is {span(facts.seen_ago)} old"
        found.append(("unknown", f"it has not been looked at{ago}"))
    if facts.failure is not None:
        found.append(("fenced" if facts.failure.startswith("Fenced") else "attention", facts.failure))
    if facts.taken_over is not None:
        found.append(("fenced", facts.taken_over))
    found += [("attention", f"{one} fails") for one in facts.failing]
    if facts.delayed is not None:
        found.append(("attention", f"batches wait: {facts.delayed}"))
    found += [("attention", one) for one in facts.notes]
    total = facts.records + facts.dead_letters
    if total and facts.dead_letters / total > MANY_LETTERS:
        share = f"{facts.dead_letters / total:.1%}"
        found.append(("attention", f"{share} of the last {total:,} records are dead letters"))
    found += _movement(facts)
    return found


def _movement(facts: StreamFacts) -> list[tuple[Word, str]]:
    """Reasons why a stream is stopped or behind."""
    if facts.failure is not None:
        return []
    waits = facts.lag_rows or 0
    quiet = min((one for one in (facts.committed_ago, facts.heard_ago) if one is not None), default=None)
    if facts.released and not facts.is_here:
        left = f"; {waits:,} rows wait in Kafka" if waits else ""
        return [("stopped", f"stopped cleanly: its shards are released{left}")]
    is_silent = not facts.is_here and (quiet is None or quiet > SILENT_SECONDS)
    if is_silent and waits:
        ago = "ever" if facts.committed_ago is None else f"for {span(facts.committed_ago)}"
        return [("stopped", f"no batch {ago}, and {waits:,} rows wait in Kafka")]
    found: list[tuple[Word, str]] = []
    if facts.kafka_error is not None:
        found.append(("attention", f"Kafka was asked where its topics end: {facts.kafka_error}"))
    if is_silent and facts.lag_rows is None:
        ago = "yet" if facts.committed_ago is None else f"for {span(facts.committed_ago)}"
        found.append(("stopped", f"no batch {ago}; it is stopped, or its topic is quiet"))
    if waits and facts.lag_seconds is not None and facts.lag_seconds > BEHIND_SECONDS:
        found.append(("behind", f"{waits:,} rows wait in Kafka, the oldest for {span(facts.lag_seconds)}"))
    return found


def _fine(facts: StreamFacts) -> str:
    if not facts.batches:
        return "it waits for its first batch"
    if facts.lag_rows == 0:
        return "everything in Kafka is in the table"
    if facts.lag_rows is not None:
        return f"{facts.lag_rows:,} rows are on their way"
    return "batches are committed"


def span(seconds: float) -> str:
    """A duration with one unit: 45 s, 12 min, 3 h, 2 d."""
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
