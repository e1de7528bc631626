"""`make screenshots`: pictures of every page of the console, in docs/images, of streams that were written for it.

The streams are the real driver and tasks without Spark, so that pictures are taken in a minute. What Spark would report
of `orders` (seconds by phase, lag) is made up for the picture, and so is when batches were committed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

import headgate
from headgate import clock
from headgate.checkpoints.jobs.state import Collected, JobProgress, MaintenanceState, put_state, timestamp
from headgate.console.watch.places import TablePlace
from headgate.streaming.observe.live import LiveSink
from headgate.streaming.observe.metrics import StreamMetrics
from tests.support.browser import browser, missing
from tests.support.consoles import WORDS, ask, console_of, fill, orders, value
from tests.support.streams import Record, Stream

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PAGES = {
    "overview": "/",
    "stream": "/t/orders/stream?offset=117",
    "shards": "/t/orders/shards",
    "shard": "/t/orders/shards/{shard}",
    "rows": "/t/orders/rows?filter=amount+%3E+100",
    "search": "/t/orders/search?q=late+delivery&k=4",
    "dead-letters": "/t/clicks/dead-letters",
    "jobs": "/t/orders/jobs",
    "health": "/t/orders/health",
}
MOVING = ("overview", "stream")
"""Pages that are shown in the dark and narrow as well."""
HEIGHT = {"stream": 1180, "rows": 760, "dead-letters": 760, "jobs": 900}


class Ago:
    """A clock that is so many seconds late."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def monotonic(self) -> float:
        return time.monotonic() - self._seconds

    def wall(self) -> float:
        return time.time() - self._seconds

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def lake(path: Path) -> tuple[str, LiveSink]:
    """Two streams and a table without any; the name of a shard, and the stream `orders` as its driver knows it."""
    draw, live = random.Random(3), LiveSink(metrics := StreamMetrics())
    table = orders(path / "orders", batches=0, rows=40, partitions=4)
    stream = Stream(table, "orders", 4, mode="memtable")
    fill(stream, 14, 40, 4)
    headgate.open_table(table.uri).checkpoint("all", name="before-migration", note="before the columns change")
    stream = Stream(table, "orders", 4, mode="memtable")
    for batch in range(14, 34):
        rows = 1_400 + (batch * 7) % 17 * 60
        live.written({"task": 1} if batch == 27 else {})
        ranges = [(part, 560 + (batch - 14) * 3_000, 560 + (batch - 13) * 3_000) for part in range(4)]
        kept = [
            Record(part, first + n, value((first + n) * 10 + part)) for part, first, _ in ranges for n in range(rows)
        ]
        kept += [Record(0, 3_500 + (batch - 14) * 3_000, b"{broken")] if batch in (19, 30) else []
        record = stream.commit(ranges, kept)
        with clock.using(Ago((33.2 - batch) * 15)):
            live.committed(record)
        tasks = 0.3 + draw.random() / 4 + (0.5 if batch == 27 else 0.0)
        parts = {"plan": 0.02, "wait": 0.0, "tasks": tasks, "commit": 0.03 + draw.random() / 50}
        live.took(batch - 14, {**parts, "total": sum(parts.values())})
        live.progress(
            {"batchId": batch - 14, "durationMs": {"triggerExecution": 700 + draw.random() * 80, "addBatch": 580}}
        )
    lag = {str(part): 60_560 + behind for part, behind in enumerate((3_800, 1_200, 0, 2_100))}
    metrics.progress(
        {"sources": [{"endOffset": {"orders": dict.fromkeys(lag, 60_560)}, "latestOffset": {"orders": lag}}]}
    )
    state = MaintenanceState(
        "orders",
        flushes=12,
        compactions=3,
        checkpoints=2,
        indexed=4,
        running=("compaction",),
        progress=(JobProgress("compaction", timestamp(14), 3, 4),),
        base_since=timestamp(240),
        collected=Collected(timestamp(5_400), 48, 3_400_000),
        at=timestamp(2),
    )
    put_state(table.home.records, state)
    live.watch(stream.driver, lambda: state)
    headgate.open_table(table.uri).checkpoint(name="month-end", expires="30d", note="for the report")
    headgate.open_table(table.uri).clone(str(path / ".." / "clone"))
    clicks = headgate.create_table(str(path / "clicks"), CLICKS, sharding=headgate.by_partition())
    reasons = (b'{"id": "x"}', b'{"id": 7, "path"', b'{"path": "/cart"}')
    stream = Stream(clicks, "clicks", 2)
    for batch in range(9):
        ranges = [(part, batch * 60, batch * 60 + 60) for part in range(2)]
        stream.commit(
            ranges, [_click(part, at, reasons) for part, first, until in ranges for at in range(first, until)]
        )
    headgate.create_table(str(path / "customers"), CLICKS)
    for one in (table, clicks):
        _spread(Path(one.uri))
    return str(table.shard("partition:orders:0").id), live


def _spread(table: Path) -> None:
    """Commit records as if one had come every fifteen seconds, more or less, until now."""
    draw, at = random.Random(5), time.time()
    for record in sorted(table.glob("_headgate/*/streams/*/log/*"), reverse=True):
        at -= 9 + draw.random() * 12
        os.utime(record, (at, at))


CLICKS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("path", pa.string())])


def _click(partition: int, offset: int, reasons: tuple[bytes, ...]) -> Record:
    good = b'{"id": %d, "path": "/%s"}' % (offset, WORDS[offset % 7].replace(" ", "-").encode())
    return Record(partition, offset, reasons[offset // 9 % 3] if offset % 9 == 4 else good)


def take(place: Path) -> None:
    """All of them."""
    with TemporaryDirectory(prefix="headgate-pictures-") as folder, chdir(folder):
        shard, live = lake(Path("lake"))
        with console_of("lake", looks=200) as console:
            console.watcher.add_live(TablePlace("lake/orders"), "orders", live)
            root = console.url.rstrip("/")
            for name in ("orders", "clicks"):
                ask(console, f"/t/{name}/shards")  # which looks at every shard, so that no figure is missing
            # The moving ones first: a minute later the stream would be behind.
            shots: list[tuple[int, str, tuple[str, ...]]] = [
                (1280, "light", MOVING),
                (1280, "dark", MOVING),
                (390, "light", MOVING),
            ]
            shots.append((1280, "light", tuple(name for name in PAGES if name not in MOVING)))
            for width, theme, names in shots:
                with browser(width, 860, theme) as context:  # type: ignore[arg-type]
                    page = context.new_page()
                    for name in names:
                        height = 860 if width == 390 else HEIGHT.get(name, 720)
                        page.set_viewport_size({"width": width, "height": height})
                        if name == "health":
                            page.goto(f"{root}{PAGES[name]}")
                            page.click("text=Run fsck")
                            page.wait_for_selector("text=no problems")
                        page.goto(root + PAGES[name].format(shard=shard))
                        page.wait_for_selector("#live:not([data-state=off])")
                        end = "-narrow" if width == 390 else f"-{theme}"
                        page.screenshot(path=str(place / f"console-{name}{end}.png"))


if __name__ == "__main__":
    if reason := missing():
        sys.exit(f"There is no browser for pictures: {reason}.")
    take(IMAGES)
    print(f"Pictures of every page are in {IMAGES}")
