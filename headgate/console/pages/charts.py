"""Geometry of the charts that templates draw. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.console.watch.log import Batch, StreamLog

PHASES = ("wait", "plan", "tasks", "commit", "spark")
"""Consecutive phases of a batch; "spark" is the rest of Spark's trigger."""
PHASE_TEXT = {
    "wait": "waiting for maintenance",
    "plan": "plan",
    "tasks": "tasks: read, decode, append",
    "commit": "commit",
    "spark": "Spark itself",
}


@dataclass(frozen=True)
class Spark:
    """A sparkline: the line, and the area below it."""

    width: int
    height: int
    line: str
    area: str
    top: float
    """The highest value."""


def sparkline(values: Sequence[float], width: int = 160, height: int = 36) -> Spark:
    """The values from left to right, 0 at the bottom."""
    top = max([*values, 0.0])
    inner, step = height - 4, width / max(1, len(values) - 1)
    points = [(i * step, height - 2 - (value / top * inner if top else 0.0)) for i, value in enumerate(values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"0,{height} {line} {width},{height}"
    return Spark(width, height, line, area, top)


@dataclass(frozen=True)
class Part:
    """A piece of a bar."""

    name: str
    y: float
    height: float


@dataclass(frozen=True)
class Bar:
    """One batch of the timeline."""

    x: float
    width: float
    parts: tuple[Part, ...]
    top: float
    text: str
    dead_letters: int
    retried: bool
    taken_over: bool
    """True if a driver took the stream over before this batch."""


@dataclass(frozen=True)
class Timeline:
    """Batches as bars: by the seconds of their phases if any are known, else by rows."""

    width: int
    height: int
    bars: tuple[Bar, ...]
    by_seconds: bool
    top: float
    """The value of the full height."""


def phases_of(batch: Batch) -> dict[str, float]:
    """The wall time of a batch by phase; empty if unknown."""
    seconds = {} if batch.timing is None else batch.timing.seconds
    return {name: seconds[name] for name in PHASES if name in seconds}


def timeline(log: StreamLog, most: int = 60, width: int = 960, height: int = 150) -> Timeline:
    """The last batches, oldest first."""
    batches = log.batches[-most:]
    by_seconds = any(phases_of(one) for one in batches)
    weights = [_weights(one, by_seconds) for one in batches]
    top = max([sum(one.values()) for one in weights] + [0.0])
    # Limits the width of bars if there are only a few batches.
    step = width / min(most, max(24, len(batches)))
    inner = height - 16
    bars = []
    for place, (batch, parts) in enumerate(zip(batches, weights, strict=True)):
        x = place * step
        y, drawn = float(height), []
        for name, value in parts.items():
            tall = value / top * inner if top else 0.0
            y -= tall
            drawn.append(Part(name, y, tall))
        before = batches[place - 1].sequence if place else batch.sequence - 1
        taken_over = any(before < one < batch.sequence for one in log.takeovers) and batch.sequence > 2
        retried = batch.timing is not None and any(batch.timing.retries.values())
        bars.append(Bar(x, max(1.5, step - 3), tuple(drawn), y, _told(batch), batch.dead_letters, retried, taken_over))
    return Timeline(width, height, tuple(bars), by_seconds, top)


def _weights(batch: Batch, by_seconds: bool) -> dict[str, float]:
    if by_seconds:
        return phases_of(batch)
    return {"rows": float(batch.rows or 0)}


def _told(batch: Batch) -> str:
    name = f"batch {batch.record.batch_id}" if batch.record is not None else "a record that was not read"
    rows = "" if batch.rows is None else f", {batch.rows:,} rows"
    dead = f", {batch.dead_letters:,} dead letters" if batch.dead_letters else ""
    at = "" if batch.at is None else f", committed {batch.at:%H:%M:%S}"
    phases = "".join(f"\n{PHASE_TEXT[name]}: {took:.3f} s" for name, took in phases_of(batch).items())
    return f"{name}, sequence {batch.sequence}{rows}{dead}{at}{phases}"


def shares(parts: Mapping[str, float]) -> dict[str, float]:
    """Each part's share of the total, between 0 and 1."""
    total = sum(parts.values())
    return {name: value / total for name, value in parts.items()} if total else {}


# -- the flow --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A box of the picture."""

    x: float
    y: float
    width: float
    height: float
    text: str
    told: str
    fill: float
    """How full it is, between 0 and 1."""
    state: str
    """calm, busy or waiting."""


@dataclass(frozen=True)
class Edge:
    """A line from one box to another."""

    path: str
    state: str


@dataclass(frozen=True)
class Column:
    """A stage of the flow."""

    title: str
    figure: str
    note: str
    nodes: tuple[Node, ...]
    share: float | None
    """The share of the time that is spent here; None if unknown."""
    state: str
    x: float
    y: float


@dataclass(frozen=True)
class Flow:
    """The picture."""

    width: int
    height: int
    columns: tuple[Column, ...]
    edges: tuple[Edge, ...]
    tall: bool


@dataclass(frozen=True)
class Stage:
    """The content of a column, without its position."""

    title: str
    figure: str
    note: str
    items: tuple[tuple[str, str, float, str], ...]
    """Text, tooltip, how full, state."""
    share: float | None = None
    state: str = "calm"


MOST_NODES = 8


def flow(stages: Sequence[Stage], *, tall: bool) -> Flow:
    """The stages from left to right, or from top to bottom on a narrow page."""
    if tall:
        width, gap = 340, 128
        height = gap * len(stages) - 20
    else:
        rows = max(len(stage.items[:MOST_NODES]) for stage in stages)
        width, height, gap = 970, 84 + rows * 35, 205
    columns, edges = [], []
    before: list[Node] = []
    for place, stage in enumerate(stages):
        nodes = _nodes(_some(stage.items), place, gap, tall)
        columns.append(
            Column(
                stage.title,
                stage.figure,
                stage.note,
                tuple(nodes),
                stage.share,
                stage.state,
                0 if tall else place * gap,
                place * gap if tall else 0,
            )
        )
        if not tall:  # from top to bottom lines would cross the texts
            edges += _edges(before, nodes, stage.state)
        before = nodes
    return Flow(width, height, tuple(columns), tuple(edges), tall)


def _some(items: Sequence[tuple[str, str, float, str]]) -> list[tuple[str, str, float, str]]:
    """At most MOST_NODES items: if there are more, the fullest, and one for the rest."""
    if len(items) <= MOST_NODES:
        return list(items)
    kept = sorted(range(len(items)), key=lambda one: -items[one][2])[: MOST_NODES - 1]
    left = len(items) - len(kept)
    return [*(items[one] for one in sorted(kept)), (f"{left:,} more", f"{left:,} more, less full", 0.0, "calm")]


def _nodes(items: Sequence[tuple[str, str, float, str]], place: int, gap: int, tall: bool) -> list[Node]:
    nodes = []
    for number, (text, told, fill, state) in enumerate(items):
        if tall:
            wide = (340 - 6 * (len(items) - 1)) / max(1, len(items))
            box = (number * (wide + 6), place * gap + 56.0, wide, 30.0)
        else:
            box = (place * gap + 0.0, 80.0 + number * 35, 150.0, 30.0)
        # The end of a long name is what tells it from its neighbours.
        shown = text if len(text) * 7 < box[2] - 16 else "…" + text[-max(1, int(box[2] - 24) // 7) :]
        nodes.append(Node(*box, shown if box[2] > 60 else "", told, min(1.0, max(0.0, fill)), state))
    return nodes


def _edges(before: Sequence[Node], after: Sequence[Node], state: str) -> list[Edge]:
    """One edge per pair if both sides have equally many boxes, else edges between all of them."""
    same = len(before) == len(after)
    pairs = zip(before, after, strict=True) if same else ((a, b) for a in before for b in after)
    edges = []
    for a, b in pairs:
        x1, y1, x2, y2 = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
        middle = (x1 + x2) / 2
        path = f"M{x1:.1f} {y1:.1f} C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
        edges.append(Edge(path, state))
    return edges
