"""The result of a soak: one page of Markdown, the same as JSON, and the memory of every part as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.soak_watch import FLAT, Growth, Sample, lives

MAX_MEGABYTES, MAX_DESCRIPTORS = 20.0, 8.0
"""By which a process may be larger at the end of a warm life than at its beginning, however long it was: what
allocators keep and pools hold, not what a leak takes.
"""
MAX_JVM = 1280.0
"""Megabytes: its heap breathes, up to the 768 that it is given, and a JVM has as much again of its own at most."""

COLOURS = {
    "driver": "#c2410c",
    "jvm": "#7c3aed",
    "workers": "#15803d",
    "broker": "#2563eb",
    "s3": "#a16207",
    "toxiproxy": "#64748b",
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 340, 60, 20, 40


@dataclass(frozen=True)
class Report:
    """What happened, and what is left to complain about."""

    seed: int
    table: str
    seconds: float
    fire: Mapping[str, int]
    """What was done, how often."""
    beside: Mapping[str, int]
    """What others did meanwhile."""
    starts: int
    ends: Mapping[str, int]
    """How starts of the stream ended."""
    batches: int
    batch_seconds: Mapping[str, float]
    records: int
    rows: int
    lost: int
    duplicates: int
    unknown: int
    dead_letters: int
    fsck: Sequence[str]
    growths: Sequence[Growth] = ()
    failures: Sequence[str] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        return not (self.failures or self.fsck or self.lost or self.duplicates or self.unknown)

    @property
    def growing(self) -> list[str]:
        """Parts that must be flat and are not."""
        return [
            f"{one.part}: {_change(one.megabytes)} MB, {_change(one.descriptors)} descriptors in {one.minutes} minutes"
            for one in self.growths
            if one.part in FLAT and _grows(one)
        ]

    def write(self, folder: Path, samples: Sequence[Sample]) -> None:
        """soak.md, soak.json, memory.svg."""
        (folder / "memory.svg").write_text(picture(samples))
        data = {**asdict(self), "holds": self.holds, "growing": self.growing}
        (folder / "soak.json").write_text(json.dumps({**data, "samples": [asdict(one) for one in samples]}) + "\n")
        (folder / "soak.md").write_text(self.page())

    @property
    def title(self) -> str:
        """Of its rows in the result file: one soak of each kind of table is kept."""
        return f"A stream under fire: a table {self.table}"

    def facts(self) -> list[dict[str, object]]:
        """What the page begins with, what was done beside the stream, and whether our processes grew."""
        rows: list[dict[str, object]] = [{"what": what, "seen": seen} for what, seen in self._facts().items()]
        rows += [{"what": f"beside it: {what}", "seen": count} for what, count in sorted(self.beside.items())]
        rows += [
            {
                "what": f"{one.part} over {one.minutes} warm minutes",
                "seen": f"{_change(one.megabytes)} MB, {_change(one.descriptors)} descriptors",
            }
            for one in self.growths
            if one.part in FLAT
        ]
        return rows

    def _facts(self) -> dict[str, object]:
        killed = sum(count for what, count in self.fire.items() if what.startswith(("kill", "pause", "zombie")))
        return {
            "result": "every promise was kept" if self.holds else "FAILED",
            "seed": f"`HEADGATE_SEED={self.seed}`",
            "table": self.table,
            "under fire": f"{self.seconds:.0f} s",
            "kills and pauses": killed,
            "faults of the networks": sum(self.fire.values()) - killed,
            "starts of `headgate ingest`": f"{self.starts}; ended by {_list(self.ends)}",
            "records in the topic": self.records,
            "rows in the table": self.rows,
            "dead letters": self.dead_letters,
            "lost": self.lost,
            "duplicates": self.duplicates,
            "rows that nobody put": self.unknown,
            "fsck": "clean" if not self.fsck else ", ".join(self.fsck),
            "batches": f"{self.batches}; {_list(self.batch_seconds)} (seconds)",
        }

    def page(self) -> str:
        """For people."""
        lines = ["# Soak", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self._facts().items()]
        lines += ["", "## Done to it", "", "| what | times |", "|---|---|"]
        lines += [f"| {what} | {count} |" for what, count in sorted(self.fire.items())]
        lines += ["", "## Beside it", "", "| what | times |", "|---|---|"]
        lines += [f"| {what} | {count} |" for what, count in sorted(self.beside.items())]
        lines += ["", "## Memory and file descriptors", "", "![memory of every part](memory.svg)", ""]
        if self.growths:
            lines += ["| part | longest warm life, minutes | MB | descriptors |", "|---|---|---|---|"]
            lines += [
                f"| {one.part} | {one.minutes} | {_change(one.megabytes)} | {_change(one.descriptors)} |"
                for one in self.growths
            ]
        else:
            lines += ["No part lived long enough to say whether it grows."]
        if self.failures:
            lines += ["", "## What went wrong", "", *(f"```\n{one}\n```" for one in self.failures)]
        return "\n".join(lines) + "\n"


def _list(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "nothing"


def _change(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.0f} → {ends[1]:.0f}"


def _grows(one: Growth) -> bool:
    first, last = one.megabytes
    larger = one.most > MAX_JVM if one.part == "jvm" else last - max(first, one.siblings) > MAX_MEGABYTES
    return larger or _more(one.descriptors) > MAX_DESCRIPTORS


def _more(ends: tuple[float, float]) -> float:
    return ends[1] - ends[0]


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the longest."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2) for name, share in at.items()}


def picture(samples: Sequence[Sample]) -> str:
    """The memory of every process over time, as SVG."""
    if not samples:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'
    end = max(one.at for one in samples) or 1.0
    most = max(one.megabytes for one in samples) * 1.05

    def place(one: Sample) -> tuple[float, float]:
        return LEFT + one.at / end * (WIDTH - LEFT - 120), TOP + (1 - one.megabytes / most) * (HEIGHT - TOP - BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)
        lines.append(f'<line x1="{LEFT}" y1="{y:.0f}" x2="{WIDTH - 120}" y2="{y:.0f}" stroke="#e5e7eb"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{most * share:.0f} MB</text>')
        x = LEFT + share * (WIDTH - LEFT - 120)
        lines.append(f'<text x="{x:.0f}" y="{HEIGHT - 18}" text-anchor="middle">{end * share:.0f} s</text>')
    for number, (part, colour) in enumerate(COLOURS.items()):
        for life in lives([one for one in samples if one.part == part]):
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, life))
            lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        lines.append(f'<text x="{WIDTH - 110}" y="{TOP + 16 + number * 18}" fill="{colour}">{part}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
