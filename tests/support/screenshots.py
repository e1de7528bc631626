"""`make screenshots`: pictures of every page of the console, in docs/images, of streams that were written for it.

The streams are the real driver and tasks without Spark, so that pictures are taken in a minute.
"""

from __future__ import annotations

import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

import headgate
from headgate.checkpoints.jobs.state import Collected, MaintenanceState, put_state, timestamp
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
BOTH = ("overview", "stream")
"""Pages that are shown in the dark as well."""
NARROW = ("overview", "stream")
HEIGHT = {"stream": 1180, "rows": 760, "dead-letters": 760, "jobs": 900}


def lake(path: Path) -> str:
    """Two streams and a table without any; the name of a shard."""
    table = orders(path / "orders", batches=0, rows=40, partitions=4)
    stream = Stream(table, "orders", 4, mode="memtable")
    fill(stream, 14, 40, 4)
    headgate.open_table(table.uri).checkpoint("all", name="before-migration", note="before the columns change")
    stream = Stream(table, "orders", 4, mode="memtable")
    for batch in range(14, 34):
        rows = 24 + (batch * 7) % 17
        ranges = [(part, 560 + (batch - 14) * 50, 560 + (batch - 13) * 50) for part in range(4)]
        kept = [
            Record(part, first + n, value((first + n) * 10 + part)) for part, first, _ in ranges for n in range(rows)
        ]
        stream.commit(ranges, kept)
    state = MaintenanceState(
        "orders",
        flushes=12,
        compactions=3,
        checkpoints=2,
        indexed=4,
        running=("compaction",),
        base_since=timestamp(240),
        collected=Collected(timestamp(5_400), 48, 3_400_000),
        at=timestamp(2),
    )
    put_state(table.home.records, state)
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
    return str(table.shard("partition:orders:0").id)


CLICKS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("path", pa.string())])


def _click(partition: int, offset: int, reasons: tuple[bytes, ...]) -> Record:
    good = b'{"id": %d, "path": "/%s"}' % (offset, WORDS[offset % 7].replace(" ", "-").encode())
    return Record(partition, offset, reasons[offset % 3] if offset % 9 == 4 else good)


def take(place: Path) -> None:
    """All of them."""
    with TemporaryDirectory(prefix="headgate-pictures-") as folder, chdir(folder):
        shard = lake(Path("lake"))
        with console_of("lake", looks=200) as console:
            root = console.url.rstrip("/")
            for name in ("orders", "clicks"):
                ask(console, f"/t/{name}/shards")  # which looks at every shard, so that no figure is missing
            shots = [(name, 1280, "light") for name in PAGES]
            shots += [(name, 1280, "dark") for name in BOTH] + [(name, 390, "light") for name in NARROW]
            for name, width, theme in shots:
                height = 860 if width == 390 else HEIGHT.get(name, 720)
                with browser(width, height, theme) as context:  # type: ignore[arg-type]
                    page = context.new_page()
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
