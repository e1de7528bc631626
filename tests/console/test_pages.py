"""What pages say of tables without a browser: the truth, escaped, and a page at a time."""

from __future__ import annotations

import html
import re
import socket
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import headgate
from headgate.console.pages.shards import SHARDS_SHOWN
from headgate.console.watch import budget
from tests.support.consoles import COLUMNS, HOSTILE, ask, console_of, orders
from tests.support.streams import Record, Stream

TAG = re.compile(r"<[^>]*>")


def words(page: str) -> str:
    """What a reader reads: without tags, with single spaces."""
    return " ".join(html.unescape(TAG.sub(" ", page)).split())


def test_the_overview_names_tables_and_streams_with_a_word_and_figures(tmp_path: Path) -> None:
    orders(tmp_path / "lake" / "orders", batches=3, rows=10, partitions=2)
    orders(tmp_path / "lake" / "clicks", batches=1, rows=30, partitions=2, bad_every=7)
    headgate.create_table(str(tmp_path / "lake" / "empty"), pa.schema([("id", pa.int64())]))
    (tmp_path / "lake" / "no-table").mkdir()
    with console_of(tmp_path / "lake") as console:
        shown = words(ask(console, "/").text)
    assert "1 needs attention 2 fine" in shown
    assert "3 tables" in shown
    assert "no-table" not in shown
    assert "records are dead letters" in shown
    assert "no stream writes to it" in shown
    assert shown.index("clicks") < shown.index("empty"), "what needs attention comes first"


def test_an_address_without_a_table_says_so(tmp_path: Path) -> None:
    with console_of(tmp_path / "nothing") as console:
        assert "there is no table here" in words(ask(console, "/").text)
        missing = ask(console, "/t/orders/shards")
    assert missing.status == 404
    assert "There is no such table here." in words(missing.text)


def test_shards_show_owner_epoch_and_what_is_missing(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=3, rows=10, partitions=2)
    shard = table.shard("partition:orders:0")
    with console_of(table.uri) as console:
        shown = words(ask(console, "/t/orders/shards").text)
        assert "partition:orders:0 orders 1 its stream 4 0 3" in shown
        (Path(table.uri) / shard.wal_key(2)).unlink()
        one = ask(console, f"/t/orders/shards/{shard.id}")
        assert one.status == 200
    assert "position 2: MISSING" in one.text
    assert "position 0: covered by an SSTable or the base" in one.text
    assert "position 3: committed rows, in the WAL alone" in one.text


def test_a_shard_tells_a_barrier_from_what_was_never_committed(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=2, rows=10, partitions=1)
    Stream(table, "orders", 1)
    shard = table.shard("partition:orders:0")
    with console_of(table.uri) as console:
        assert "position 3: fence barrier of a writer" in ask(console, f"/t/orders/shards/{shard.id}").text
        for wrong in (str(uuid.uuid4()), "x", "..%2f..", "%00"):
            assert ask(console, f"/t/orders/shards/{wrong}").status == 404


def test_hostile_names_change_nothing(tmp_path: Path) -> None:
    hostile = HOSTILE.replace("/", "|").replace("\x00", "")
    table = headgate.create_table(str(tmp_path / "lake" / hostile), COLUMNS, sharding=headgate.by_partition())
    stream = Stream(table, "orders", 1, name=HOSTILE)
    stream.commit([(0, 0, 1)], [Record(0, 0, b'{"id": 1, "note": "n"}')])
    with console_of(tmp_path / "lake") as console:
        pages = [ask(console, path).text for path in ("/", "/t/table", "/t/table/shards")]
        pages.append(ask(console, f"/{HOSTILE.encode().hex()}<script>").text)
    for page in pages:
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "\u202e" not in page
        assert "\u200f" not in page
    assert "\\u202eevil" in pages[0], "what was hidden is shown"


def test_ten_thousand_shards_come_a_page_at_a_time(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=1, rows=2, partitions=1)
    for _ in range(10_000):
        folder = Path(table.uri) / "_mem_wal" / str(uuid.uuid4())
        folder.mkdir()
        (folder / "x").touch()
    with console_of(table.uri, looks=8) as console:
        before = console.watcher.budget.spent
        first = ask(console, "/t/orders/shards")
        asked = console.watcher.budget.spent - before
        last = ask(console, "/t/orders/shards?page=401")
        beyond = ask(console, "/t/orders/shards?page=99999999999")
    assert first.status == last.status == beyond.status == 200
    assert "10,001 shards" in words(first.text)
    assert first.text.count("/shards/") <= SHARDS_SHOWN + 3
    assert asked <= 4 * SHARDS_SHOWN
    assert "401 of 401" in words(last.text)


@pytest.mark.parametrize("path", ["/", "/t/orders/shards"])
def test_pages_have_no_script_style_or_handler_of_their_own(tmp_path: Path, path: str) -> None:
    orders(tmp_path / "orders", batches=1, rows=2, partitions=1)
    with console_of(tmp_path / "orders") as console:
        page = ask(console, path).text
    assert not re.search(r"\sstyle=|\son[a-z]+=|<style|<script(?! src=\"/static/)|https?://(?!www\.w3\.org)", page)


def test_a_stream_page_shows_batches_offsets_and_where_an_offset_is(tmp_path: Path) -> None:
    orders(tmp_path / "orders", batches=4, rows=10, partitions=2, bad_every=10)
    with console_of(tmp_path / "orders") as console:
        page = words(ask(console, "/t/orders/stream").text)
        assert "orders/1 0 40 – – partition:orders:1 4" in page
        assert "records are dead letters" in page
        for offset, said in {
            "25": "Committed in batch 2, sequence 4. partition:orders:1 , position 3 : in the write-ahead log",
            "13": "A dead letter of batch 1",
            "40": "Not in the table yet. The next batch starts at offset 40",
            "x": "whole numbers",
            "-1": "whole numbers",
        }.items():
            found = ask(console, f"/t/orders/stream?topic=orders&partition=1&offset={offset}")
            assert said in words(found.text), offset
        assert ask(console, "/t/orders/stream?stream=none").status == 404
        assert ask(console, "/t/orders").headers["location"] == "/t/orders/stream"


def test_a_driver_that_took_over_is_marked(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=2, rows=10, partitions=1)
    stream = Stream(table, "orders", 1)
    stream.commit([(0, 20, 21)], [Record(0, 20, b'{"id": 1}')])
    with console_of(table.uri) as console:
        page = ask(console, "/t/orders/stream").text
        assert page.count('class="over-mark" x=') == 1


def test_a_driver_that_has_just_started_is_not_called_stopped(tmp_path: Path) -> None:
    table = headgate.create_table(str(tmp_path / "orders"), COLUMNS, sharding=headgate.by_partition())
    Stream(table, "orders", 1)
    with console_of(table.uri) as console:
        shown = words(ask(console, "/t/orders/stream").text)
    assert "orders fine it waits for its first batch" in shown


def test_events_come_when_something_was_committed(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=1, rows=10, partitions=1)
    with console_of(table.uri) as console:
        with socket.create_connection(("127.0.0.1", console.port), 60) as listening:
            host = f"Host: 127.0.0.1:{console.port}\r\n"
            listening.sendall(f"GET /events HTTP/1.1\r\n{host}\r\n".encode())
            lines = listening.makefile("rb")
            assert b"200" in lines.readline()
            while not lines.readline().startswith(b"data: "):
                pass
            Stream(table, "orders", 1).commit([(0, 10, 11)], [Record(0, 10, b'{"id": 1}')])
            # Two news may come before the look that sees it.
            for _ in range(60):
                if "sequence 4" in ask(console, "/t/orders/stream").text:
                    return
                while not lines.readline().startswith(b"data: "):
                    pass
            raise AssertionError("the page never showed the batch")


def test_a_page_that_must_wait_says_for_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders(tmp_path / "orders", batches=1, rows=2, partitions=1)
    with console_of(tmp_path / "orders") as console:
        monkeypatch.setattr(budget, "ADVANCE", -1e6)
        waits = ask(console, "/t/orders/shards")
        assert ask(console, "/").status == 200, "what is known is shown"
    assert waits.status == 503
    assert int(waits.headers["retry-after"]) > 1_000
    assert "two objects a second" in words(waits.text)
