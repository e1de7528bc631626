"""Rows with where they lie, searches, and dead letters: against what was put there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import dead_entries, newest_entries
from headgate.console.pages.letters import LETTERS_SHOWN
from headgate.console.pages.words import cell, clean, raw
from headgate.table.table import Table
from tests.console.test_pages import words
from tests.support.consoles import COLUMNS, HOSTILE, ask, console_of, orders, value
from tests.support.streams import Record, Stream


def keyed(path: Path) -> Table:
    return headgate.create_table(
        str(path), COLUMNS, primary_key="id", sharding=headgate.bucket("id", 2), full_text="note"
    )


def layers_of(page: str) -> list[str]:
    return re.findall(r'class="tag (tail|sstable|base)"', page)


def test_each_row_says_where_it_lies(tmp_path: Path) -> None:
    table = keyed(tmp_path / "t")

    def put(rows: dict[int, str]) -> None:
        ids = pa.array(list(rows), pa.int64())
        table.upsert(pa.table({"id": ids, "note": list(rows.values()), "amount": pa.array([1.0] * len(rows))}))

    put({n: "in the base" for n in range(6)})
    table.flush()
    table.compact()
    put({n: "in an sstable" for n in range(4)})
    table.flush()
    put({n: "fresh" for n in range(2)})
    table.checkpoint(name="then")
    table.delete([0])
    with console_of(table.uri) as console:
        page = ask(console, "/t/t/rows")
        assert sorted(layers_of(page.text)) == ["base"] * 2 + ["sstable"] * 2 + ["tail"]
        said = words(page.text)
        assert "5 rows" in said
        for tag, note in (("tail", "fresh"), ("SSTable", "in an sstable"), ("base", "in the base")):
            assert re.search(rf"{tag} .{{0,60}}\d+ {note}", said), tag
        then = ask(console, "/t/t/rows?checkpoint=then")
        assert sorted(layers_of(then.text)) == ["base"] * 2 + ["sstable"] * 2 + ["tail"] * 2
        filtered = words(ask(console, "/t/t/rows?filter=note+%3D+%27fresh%27").text)
        assert "1 row," in filtered
        wrong = ask(console, "/t/t/rows?filter=" + quote("1=1) or (1=1"))
        assert wrong.status == 200
        assert "The filter" in words(wrong.text)
        assert ask(console, "/t/t/rows?checkpoint=none").status == 404


def test_a_fresh_row_names_its_entry_and_the_offsets_that_it_was_made_of(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=3, rows=5, partitions=1)
    with console_of(table.uri) as console:
        said = words(ask(console, "/t/orders/rows").text)
    for batch in range(3):
        for offset in range(batch * 5, batch * 5 + 5):
            where = (
                f"tail partition:orders:0, entry {batch + 1} · orders/0 [{batch * 5}, {batch * 5 + 5}) {offset * 10} "
            )
            assert where in said


def test_a_search_shows_hits_with_the_words_marked(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=1, rows=20, partitions=1)
    with console_of(table.uri) as console:
        page = ask(console, "/t/orders/search?q=fragile&k=3")
        assert page.text.count('<li class="card hit">') == 3
        assert "<mark>fragile</mark>" in page.text
        assert "Nothing was found." in words(ask(console, "/t/orders/search?q=zebra").text)
        assert "was not" not in words(ask(console, "/t/orders/search").text)
        file = tmp_path / "secret.json"
        file.write_text("[1.0]")
        told = ask(console, "/t/orders/search?vector=" + quote(f"@{file}"))
        assert "must be a list of numbers" in words(told.text), "a file of this machine is not read"


def test_vectors_and_both_together_are_searched(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("note", pa.string()), ("place", pa.list_(pa.float32(), 2))])
    table = headgate.create_table(
        str(tmp_path / "t"), schema, full_text="note", vector={"place": headgate.vector("l2")}
    )
    with table.writer("single") as writer:
        places = pa.array([[float(n), 0.0] for n in range(8)], schema.field("place").type)
        writer.put(
            pa.table({"id": list(range(8)), "note": ["near" if n == 5 else "far" for n in range(8)], "place": places})
        )
    with console_of(table.uri) as console:
        said = words(ask(console, "/t/t/search?k=2&vector=" + quote("[2.2, 0]")).text)
        assert re.search(r"distance 0\.04 id 2", said)
        assert re.search(r"distance 0\.64 id 3", said)
        both = words(ask(console, "/t/t/search?k=1&q=near&vector=" + quote("[5, 0]")).text)
        assert re.search(r"relevance 0\.0\d+ score [\d.]+ distance 0 id 5", both)


def test_dead_letters_come_newest_first_and_each_once(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=9, rows=14, partitions=3, bad_every=7)
    state = CommitLog(table.home.records, "orders", table.uri).read()
    every = [(one.log, one.position) for one in dead_entries(table.home, state)]
    newest = [(one.log, one.position) for one in newest_entries(table.home, state)]
    assert sorted(every) == sorted(newest)
    assert [position for _, position in newest] == sorted((position for _, position in every), reverse=True)
    seen: list[str] = []
    with console_of(table.uri) as console:
        at = "/t/orders/dead-letters?stream=orders"
        for _ in range(20):
            page = ask(console, at)
            assert page.status == 200
            found = re.findall(r"<b><bdi>(orders/\d)</bdi></b> <span class=\"num\">offset (\d+)<", page.text)
            assert len(found) <= LETTERS_SHOWN
            seen += [f"{part} {offset}" for part, offset in found]
            older = re.search(r'href="([^"]*)" rel="next"', page.text)
            if older is None:
                break
            at = older[1].replace("&amp;", "&")
    expected = {f"orders/{part} {offset}" for part in range(3) for offset in range(126) if offset % 7 == 3}
    assert len(seen) == len(set(seen))
    assert set(seen) == expected


def test_a_million_dead_letters_are_not_read_for_a_page(tmp_path: Path) -> None:
    """Some entries are read, however many there are; an entry of many letters is a page after the other."""
    table = headgate.create_table(str(tmp_path / "t"), COLUMNS, sharding=headgate.by_partition())
    stream = Stream(table, "topic", 1)
    for batch in range(12):
        first = batch * 1_000
        stream.commit([(0, first, first + 1_000)], [Record(0, first + n, b"{%d" % n) for n in range(1_000)])
    with console_of(table.uri) as console:
        page = words(ask(console, "/t/t/dead-letters").text)
        assert "Why, of the newest 5,000" in page
        watched = console.watcher.table("t")
        assert watched is not None
        with watched.reading() as reader:
            before = reader.home.store.operations()["get"]
            ask_path = "/t/t/dead-letters?stream=topic&after=11.500.dead-letters%3Apartition%3Atopic%3A0"
        assert "offset 11,500" in words(ask(console, ask_path).text)
        with watched.reading() as reader:
            assert reader.home.store.operations()["get"] - before <= 10


@pytest.mark.parametrize("after", ["x", "1.2", "-1.0.a", "9" * 400 + ".0.a", "0.0.none", "1.0." + "a" * 2_000])
def test_a_place_that_is_none_is_no_error(tmp_path: Path, after: str) -> None:
    table = orders(tmp_path / "orders", batches=1, rows=9, partitions=1, bad_every=7)
    with console_of(table.uri) as console:
        assert ask(console, f"/t/orders/dead-letters?stream=orders&after={after}").status == 200


def test_hostile_values_change_nothing(tmp_path: Path) -> None:
    table = headgate.create_table(str(tmp_path / "t"), COLUMNS, sharding=headgate.by_partition(), full_text="note")
    stream = Stream(table, "topic", 1)
    long = "long " * 200_000
    records = [
        Record(0, 0, value(0).replace(b"late", json.dumps(HOSTILE)[1:-1].encode())),
        Record(0, 1, json.dumps({"id": 1, "note": HOSTILE + " fragile " + long}).encode()),
        Record(0, 2, b'{"id": "' + HOSTILE.encode() + b'"}'),
        Record(0, 3, b"\xff\xfe" + HOSTILE.encode() * 1_000),
        Record(0, 4, b'{"id": "' + b"x" * 1_000_000 + b'"}'),
    ]
    stream.commit([(0, 0, 5)], records)
    paths = ("rows", "search?q=fragile", "search?q=" + quote(HOSTILE), "dead-letters", "rows?filter=" + quote(HOSTILE))
    with console_of(table.uri) as console:
        for path in paths:
            page = ask(console, f"/t/t/{path}")
            assert page.status == 200, path
            assert "<script>alert" not in page.text, path
            assert "<img" not in page.text, path
            assert "\u202e" not in page.text, path
            assert len(page.text) < 60_000, path
        assert "characters)" in ask(console, "/t/t/rows").text, "a long value says how long it is"


def test_what_is_hidden_in_a_text_is_shown() -> None:
    assert clean("a\u202eb\x00\u2066") == "a\\u202eb\\u0000\\u2066"
    assert clean("tab\tline\n") == "tab\tline\n"
    assert cell(None) == "null"
    assert cell([1.0] * 400) == "[1, 1, 1, 1, 1, 1, … 400 values]"
    assert raw(b"\xff\x00", 100) == "ff 00"
    assert raw("né".encode() * 100, 4).startswith("né")
    assert raw(b"plain", 100) == "plain"
