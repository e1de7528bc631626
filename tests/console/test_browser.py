"""The console in a real browser: what moves, what must not, and what a reader sees."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headgate
from headgate.console.server import Address, Console
from headgate.console.watch.places import TablePlace
from headgate.streaming.observe.live import LiveSink
from headgate.streaming.observe.metrics import StreamMetrics
from tests.cli.calls import started
from tests.support.browser import browser, missing
from tests.support.consoles import COLUMNS, HOSTILE, console_of, orders
from tests.support.runs import SCHEMA, Topic
from tests.support.streams import Record, Stream

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

WHERE = "stream?topic=orders&partition=0&offset=3"
PAGES = ("stream", WHERE, "shards", "rows", "search?q=fragile", "dead-letters", "jobs", "health")

DRIVER = """
import sys
import headgate
from tests.support.consoles import fill
from tests.support.streams import Stream

table, first, batches = headgate.open_table(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
stream = Stream(table, "orders", 2)
for batch in range(first, first + batches):
    fill(stream, 1, 10, 2, first=batch)
    print(batch, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a stream, bad records and a checkpoint."""
    path = tmp_path_factory.mktemp("lake")
    table = orders(path / "orders", batches=4, rows=15, partitions=3, bad_every=10)
    headgate.open_table(table.uri).checkpoint(name="before-migration", expires="7d")
    return path


class Seen:
    """What a browser said of a page."""

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.dialogs = 0
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("dialog", self._dialog)

    def _dialog(self, dialog: Any) -> None:
        self.dialogs += 1
        dialog.dismiss()


@contextmanager
def opened(context: BrowserContext) -> Iterator[tuple[Page, Seen]]:
    page = context.new_page()
    page.set_default_timeout(60_000)
    try:
        yield page, Seen(page)
    finally:
        page.close()


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_every_page_fits_says_no_error_and_asks_nobody_else(lake: Path, width: int, theme: Any) -> None:
    with console_of(lake) as console, browser(width, theme=theme) as context, opened(context) as (page, seen):
        for path in ("/", *(f"/t/orders/{one}" for one in PAGES), "/runbook/Fenced", "/nothing"):
            answer = page.goto(console.url.rstrip("/") + path)
            assert answer is not None
            assert answer.status == (404 if path == "/nothing" else 200), path
            page.wait_for_selector("#live:not([data-state=off])")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is too wide"
            assert page.locator("h1").count() >= 1, path
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(15, 20, 27)" if theme == "dark" else "rgb(246, 247, 249)")
    assert [one for one in seen.errors if "404" not in one] == []
    assert {one for one in seen.asked if not one.startswith(console.url)} == set()


def test_a_stream_that_is_killed_and_recovers_is_watched(tmp_path: Path) -> None:
    """Batches, the silence after a kill, the successor and its batches, on one page that is not loaded again."""
    table = headgate.create_table(str(tmp_path / "orders"), COLUMNS, sharding=headgate.by_partition())

    def driver(first: int, batches: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", DRIVER, table.uri, str(first), str(batches)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def reached(process: subprocess.Popen[str], batch: int) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == batch:
                return
        raise AssertionError("the driver ended")

    with console_of(table.uri) as console, browser() as context, opened(context) as (page, seen):
        page.goto(f"{console.url}t/orders/stream")
        first, second = driver(0, 3), None
        try:
            reached(first, 2)
            page.wait_for_selector("[data-live=offsets] tr:has-text('orders/1') >> text='30'")
            page.evaluate("window.kept = 1")
            first.kill()
            first.wait()
            assert page.locator(".over-mark[x]").count() == 0
            second = driver(3, 2)
            reached(second, 4)
            page.wait_for_selector("[data-live=offsets] tr:has-text('orders/1') >> text='50'")
            page.wait_for_selector(".timeline .over-mark", state="attached")
            bars = page.locator(".timeline g")
            assert bars.count() == 5
            assert "60" not in page.locator("[data-live=offsets]").inner_text()
        finally:
            for one in (first, second):
                if one is not None:
                    one.kill()
                    one.communicate()
        rows = headgate.open_table(table.uri).count()
        told = page.locator("[data-live=batches] tbody td[data-l=rows]").all_inner_texts()
        assert sum(map(int, told)) == rows == 100, "the page is what the table holds"
        assert page.evaluate("window.kept") == 1, "it was never loaded again"
        console.close()
        page.wait_for_selector("#live[data-state=lost]")
    assert [one for one in seen.errors if "ERR_" not in one] == []


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
def test_an_ingest_from_kafka_that_is_killed_and_started_again_is_watched(
    kafka_servers: str, make_topic: Any, tmp_path: Path
) -> None:
    """The page of a console elsewhere, beside the one that the driver itself shows until it dies."""
    topic = Topic(kafka_servers, make_topic(2), 2)
    topic.put_numbers(range(100))
    table = headgate.create_table(str(tmp_path / "orders"), SCHEMA, sharding=headgate.by_partition())

    def ingest() -> subprocess.Popen[str]:
        where = ("--servers", kafka_servers, "--topic", topic.name, "--table", table.uri, "--stream", "orders")
        return started("ingest", *where, "--cores", "2", "--output", "json", "--ui", "0")

    def console_at(process: subprocess.Popen[str]) -> str:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"The console is at (http://\S+)", line):
                return found[1]
        raise AssertionError("the driver ended")

    def shows(page: Page, rows: int) -> None:
        page.wait_for_selector(f"[data-live=offsets] tr:has-text('/1') >> text='{rows // 2}'")
        page.wait_for_selector("[data-live=head] >> text=everything in Kafka is in the table")

    watching = console_of(table.uri, servers=kafka_servers)
    with watching as console, browser() as context, opened(context) as (page, seen):
        page.set_default_timeout(240_000)
        page.goto(f"{console.url}t/orders/stream")
        first, second = ingest(), None
        try:
            own = context.new_page()
            own.set_default_timeout(240_000)
            own.goto(f"{console_at(first)}t/orders/stream")
            shows(own, 100)
            own.wait_for_selector(".timeline .tasks", state="attached")
            own.wait_for_selector("text=/\\d+ %/")
            page.bring_to_front()
            shows(page, 100)
            page.evaluate("window.kept = 1")
            first.kill()
            first.communicate()
            own.bring_to_front()
            own.wait_for_selector("#live[data-state=lost]")
            page.bring_to_front()
            topic.put_numbers(range(100, 160))
            page.wait_for_selector("[data-live=offsets] tr:has-text('/1') >> text='30'")
            second = ingest()
            shows(page, 160)
            page.wait_for_selector(".timeline .over-mark", state="attached")
        finally:
            for one in (first, second):
                if one is not None:
                    one.kill()
                    one.communicate()
        assert page.evaluate("window.kept") == 1, "it was never loaded again"
        told = page.locator("[data-live=batches] tbody td[data-l=rows]").all_inner_texts()
        assert sum(map(int, told)) == headgate.open_table(table.uri).count() == 160
    assert seen.errors == []


def test_hostile_names_and_values_do_nothing_in_a_browser(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "|").replace("\x00", "")
    table = headgate.create_table(str(tmp_path / name), COLUMNS, sharding=headgate.by_partition(), full_text="note")
    stream = Stream(table, HOSTILE, 1)
    rows = [Record(0, 0, json.dumps({"id": 1, "note": f"{HOSTILE} fragile"}).encode())]
    stream.commit([(0, 0, 3)], [*rows, Record(0, 1, HOSTILE.encode()), Record(0, 2, HOSTILE.encode() * 20_000)])
    headgate.open_table(table.uri).checkpoint(name=HOSTILE, note=HOSTILE)
    with console_of(tmp_path) as console, browser() as context, opened(context) as (page, seen):
        for path in ("/", *(f"/t/table/{one}" for one in PAGES)):
            page.goto(console.url.rstrip("/") + path)
            page.wait_for_selector("#live:not([data-state=off])")
            assert page.evaluate("[document.scripts.length, document.images.length]") == [2, 0], path
            assert page.evaluate("getComputedStyle(document.body).direction") == "ltr"
            assert "\u202e" not in page.content()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    assert (seen.dialogs, seen.errors) == (0, [])


def test_the_keyboard_reaches_pages_and_fields_and_the_theme_stays(lake: Path) -> None:
    with console_of(lake) as console, browser() as context, opened(context) as (page, seen):
        page.goto(f"{console.url}t/orders/stream")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for key, at in (("3", "rows"), ("2", "shards"), ("6", "jobs")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            page.wait_for_url(f"**/t/orders/{at}")
        page.goto(f"{console.url}t/orders/rows")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") == "filter"
        page.keyboard.type("id = 40")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=1 row, the newest")
        page.click("#theme")
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert seen.errors == []


def test_the_phases_of_a_batch_lie_in_its_bar(tmp_path: Path) -> None:
    table = headgate.create_table(str(tmp_path / "orders"), COLUMNS, sharding=headgate.by_partition())
    stream, live = Stream(table, "orders", 1), LiveSink(StreamMetrics())
    for batch in range(3):
        live.committed(stream.commit([(0, batch, batch + 1)], [Record(0, batch, b'{"id": 1}')]))
        live.took(batch, dict.fromkeys(("plan", "wait", "tasks", "commit"), 0.1))
        live.progress({"batchId": batch, "durationMs": {"triggerExecution": 900, "addBatch": 400}})
    live.watch(stream.driver, lambda: None)
    with console_of(tmp_path) as console, browser() as context, opened(context) as (page, seen):
        console.watcher.add_live(TablePlace(table.uri), "orders", live)
        page.goto(f"{console.url}t/orders/stream")
        bars = page.locator(".timeline g")
        assert bars.count() == 3
        for bar in bars.all():
            whole = bar.locator(".hit").bounding_box()
            parts = [part.bounding_box() for part in bar.locator("rect:not(.hit)").all()]
            assert whole is not None
            assert len(parts) == 5
            for part in parts:
                assert part is not None
                assert whole["x"] - 1 <= part["x"]
                assert part["x"] + part["width"] <= whole["x"] + whole["width"] + 1
                assert part["height"] < whole["height"]
    assert seen.errors == []


def test_a_hidden_page_holds_no_connection_and_is_current_when_it_is_seen_again(lake: Path) -> None:
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with console_of(lake) as console, browser() as context, opened(context) as (page, seen):
        page.goto(f"{console.url}t/orders/stream")
        page.wait_for_selector("#live[data-state=on]")
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
            page.evaluate(hide, True)
        with page.expect_request("**/events"), page.expect_response("**/t/orders/stream"):
            page.evaluate(hide, False)
        page.wait_for_selector("#live[data-state=on]")
    assert seen.errors == []


def test_rows_and_the_chosen_tab_are_seen_on_a_narrow_page(lake: Path) -> None:
    with console_of(lake) as console, browser(390, 860) as context, opened(context) as (page, _):
        page.goto(f"{console.url}t/orders/rows")
        tallest = page.evaluate(
            "Math.max(...[...document.querySelectorAll('tbody tr')].map((one) => one.offsetHeight))"
        )
        assert tallest < 260
        page.goto(f"{console.url}t/orders/health")
        tab = page.locator(".tabs [aria-current]").bounding_box()
        assert tab is not None
        assert 0 <= tab["x"] <= tab["x"] + tab["width"] <= 390


def test_a_check_is_started_by_its_button(lake: Path) -> None:
    with console_of(lake) as console, browser() as context, opened(context) as (page, seen):
        page.goto(f"{console.url}t/orders/health")
        page.click("text=Run fsck")
        page.wait_for_selector("text=no problems")
        page.click("text=Run doctor")
        page.wait_for_selector(".checks li")
    assert seen.errors == []


def test_the_token_leaves_the_address_and_scripts_cannot_read_it(tmp_path: Path) -> None:
    token = "a-token-that-nobody-guesses"
    with console_of(tmp_path, address=Address(port=0, token=token)) as console:
        check_token(console, token)


def check_token(console: Console, token: str) -> None:
    with browser() as context, opened(context) as (page, _):
        assert page.goto(console.url) is not None
        assert "needs its token" in page.content()
        page.goto(console.url_with_token)
        assert page.url == console.url
        assert page.evaluate("document.cookie") == ""
        assert page.locator("h1").count() == 1
        (cookie,) = context.cookies()
        assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
        assert token not in str(cookie.get("value"))
