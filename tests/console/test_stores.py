"""The console of tables on S3: everything comes from the store, and no credential is shown."""

from __future__ import annotations

import io
import re

import pytest
import structlog

import headgate
from tests.console.test_health import ended, start
from tests.console.test_pages import words
from tests.support.consoles import COLUMNS, ask, console_of, fill
from tests.support.services import S3_SECRETS
from tests.support.streams import Stream

PAGES = ("stream?offset=3", "shards", "rows", "search?q=fragile", "dead-letters", "jobs", "health")


@pytest.mark.s3
@pytest.mark.real_s3
def test_tables_on_s3_are_shown_from_the_store_alone(bucket: str, s3_options: dict[str, str]) -> None:
    lake = f"s3://{bucket}/lake"
    table = headgate.create_table(
        f"{lake}/orders",
        COLUMNS,
        sharding=headgate.by_partition(),
        full_text="note",
        storage_options=s3_options,
    )
    fill(Stream(table, "orders", 2), 3, 10, 2, bad_every=10)
    headgate.open_table(table.uri, storage_options=s3_options).checkpoint(name="month-end")
    out = io.StringIO()
    headgate.configure_logs("json", level="DEBUG", stream=out)
    try:
        with console_of(lake, options=s3_options) as console:
            front = words(ask(console, "/").text)
            pages = {page: ask(console, f"/t/orders/{page}") for page in PAGES}
            start(console, "fsck")
            checked = ended(console, "no problems")
            start(console, "doctor")
            ended(console, "fit")
            gone = words(ask(console, "/t/orders/rows?checkpoint=none").text)
    finally:
        structlog.reset_defaults()
    assert f"orders needs attention {lake}/orders" in front
    assert {page: answer.status for page, answer in pages.items()} == dict.fromkeys(PAGES, 200)
    said = {page: words(answer.text) for page, answer in pages.items()}
    assert "orders/1 0 30 – – partition:orders:1 3" in said["stream?offset=3"]
    assert "2 shards" in said["shards"]
    # Ids of shards are random, and so is which of the two comes first.
    assert re.search(r"tail partition:orders:[01], entry 1", said["rows"])
    assert "orders/0 offset 3" in said["dead-letters"]
    assert "month-end named" in said["jobs"]
    shown = "".join(answer.text for answer in pages.values()) + front + checked + gone + out.getvalue()
    assert [secret for secret in S3_SECRETS if secret in shown] == []
