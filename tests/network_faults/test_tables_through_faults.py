"""All that a table can do, over a network that breaks: it works, or says that the store is away. Never that anything is
lost or damaged, which is not so; never in words that are not ours; and nothing is left torn.

Replay with HEADGATE_SEED=<seed>.
"""

from __future__ import annotations

import os
import random
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pytest

from headgate.checkpoints.snapshots.parts import part_batches
from headgate.checkpoints.snapshots.splits import plan_read
from headgate.connectors.lance.dataset import look
from headgate.connectors.lance.datasets import open_dataset, scan_dataset
from headgate.connectors.lance.health import look_over
from headgate.connectors.lance.rows import numbered_batches
from headgate.connectors.objects import open_store
from headgate.errors import DataLoss, Poisoned, Transient
from headgate.shards.sharding import by_partition
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.clones import DIRECT, Content, content, open_stream, rows, run_batch, streamed
from tests.support.life import SCHEMA, expected_dead, expected_rows, ranges_of
from tests.support.network import LOST, RESET, Fault, Proxy, replayable, seed_of_run
from tests.support.services import S3_SECRETS, s3_options_for

pytestmark = [pytest.mark.s3, pytest.mark.real_s3]

AWAY = (Transient, Poisoned)


@dataclass
class Written:
    """Rows and dead letters that were tried, and those that were acknowledged; numbers are drawn by `chance`."""

    chance: random.Random
    tried: Content
    acknowledged: Content

    def check(self, found: Content) -> None:
        """Nothing is there twice, nothing that was acknowledged is missing, and nothing is there that nobody put."""
        parts: Iterable[tuple[Counter[Any], Counter[Any], Counter[Any]]]
        parts = zip(found, self.tried, self.acknowledged, strict=True)
        for there, tried, acknowledged in parts:
            assert set(there.values()) == {1}, there.most_common(3)
            assert set(acknowledged) <= set(there), set(acknowledged) - set(there)
            assert set(there) <= set(tried), set(there) - set(tried)


def get(table: Table, written: Written) -> None:
    """Of the table with a key that `with_a_key` made: rows of the base, of an SSTable and of the WAL."""
    found = open_table(f"{table.uri}-keyed", storage_options=table.storage_options).get(keys(*range(1, 5)))
    assert sorted(found["id"].to_pylist()) == [1, 2, 3], "and 4 was never there"


def keys(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def with_a_key(uri: str, options: dict[str, str]) -> None:
    table = create_table(
        f"{uri}-keyed",
        SCHEMA,
        primary_key="id",
        sharding=by_partition(key_is_partitioned=True),
        storage_options=options,
    )
    lance.write_dataset(pa.Table.from_batches([rows(1)]), table.uri, mode="append", storage_options=options)
    with table.writer(DIRECT) as writer:
        writer.put(rows(2))
        writer.flush_memtable()
        writer.put(rows(3))


def put(table: Table, written: Written) -> None:
    row = (written.chance.randrange(1 << 40), "direct")
    with table.writer(DIRECT) as writer:
        written.tried[0][row] += 1
        writer.put(rows(row[0]))
        written.acknowledged[0][row] += 1
        writer.flush_memtable()


def checkpoint(table: Table, written: Written) -> None:
    taken = table.checkpoint(name=f"c-{uuid.uuid4().hex}", expires=60)
    table.drop_checkpoint(taken.name)


def checked(table: Table, written: Written) -> None:
    findings = fsck(table.uri, storage_options=table.storage_options).findings
    assert findings == (), [(one.code, one) for one in findings]


def note(known: Content, rows: Iterable[tuple[int, str]], dead: Iterable[tuple[int, int]]) -> None:
    known[0].update(rows)
    known[1].update(dead)


def stream(table: Table, written: Written) -> None:
    driver = open_stream(table)
    last = driver.head.last
    number = 0 if last is None else last.batch_id + 1
    batch = [(one, "n") for one in expected_rows(ranges_of(number))], expected_dead(ranges_of(number))
    note(written.tried, *batch)
    run_batch(driver, number, ranges_of(number))
    note(written.acknowledged, *batch)


def clone(table: Table, deep: bool) -> Table:
    return table.clone(f"{table.uri}-{uuid.uuid4().hex[:8]}", deep=deep, names=[DIRECT])


WORKS: dict[str, Callable[[Table, Written], object]] = {
    "scan": lambda table, written: table.scan().read_all(),
    "shards": lambda table, written: table.shards(),
    "get": get,
    "search": lambda table, written: table.search("direct", column="note"),
    "put": put,
    "stream": stream,
    "checkpoint": checkpoint,
    "flush": lambda table, written: table.flush(),
    "compact": lambda table, written: table.compact(),
    "clone": lambda table, written: clone(table, deep=False),
    "deep clone": lambda table, written: clone(table, deep=True),
    "garbage": lambda table, written: table.collect_garbage(min_age=timedelta(hours=1), apply=True),
    "fsck": checked,
    "checkpoint all": lambda table, written: table.checkpoint("all"),
}


def test_what_lance_cannot_reach_is_away_and_neither_lost_nor_damaged(
    bucket: str, s3_options: dict[str, str], s3_proxy: Proxy
) -> None:
    uri = f"s3://{bucket}/t"
    streamed(uri, storage_options=s3_options, full_text=("note",))
    options = s3_options_for(s3_proxy.endpoint)
    store = open_store(uri, options)
    dataset = open_dataset(store)
    table = open_table(uri, storage_options=options)
    plan = plan_read(table.home, table.shard_ids(), None)
    asks: dict[str, Callable[[], object]] = {
        "open": lambda: open_dataset(store),
        "look": lambda: look(uri, options),
        "health": lambda: look_over(store),
        "scan": lambda: list(scan_dataset(dataset, None, None)),
        "rows": lambda: list(numbered_batches(dataset, ["id"])),
        "a read that holds nothing": lambda: [list(part_batches(plan, part)) for part in plan.parts],
    }
    s3_proxy.cut()
    # Each waits out its patience: all at once.
    with ThreadPoolExecutor(len(asks)) as pool:
        asked = {name: pool.submit(ask) for name, ask in asks.items()}
    for name, answer in asked.items():
        with pytest.raises(Transient) as caught:
            answer.result()
        shown = "".join(traceback.format_exception(caught.value))
        assert not any(secret in shown for secret in S3_SECRETS), name
    s3_proxy.mend()
    for ask in asks.values():
        ask()
    with pytest.raises(DataLoss):
        open_dataset(store, "nowhere")


@pytest.mark.deep
@pytest.mark.parametrize("fault", [RESET, LOST], ids=lambda fault: fault.name)
def test_whatever_is_done_to_a_table_works_or_says_that_the_store_is_away(
    fault: Fault, bucket: str, s3_options: dict[str, str], s3_proxy: Proxy
) -> None:
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    with replayable(seed, fault.name):
        do_everything_under(fault, random.Random(seed), bucket, s3_options, s3_proxy)


def do_everything_under(
    fault: Fault, chance: random.Random, bucket: str, s3_options: dict[str, str], s3_proxy: Proxy
) -> None:
    uri = f"s3://{bucket}/t"
    direct, _ = streamed(uri, storage_options=s3_options, full_text=("note",))
    with_a_key(uri, s3_options)
    written = Written(chance, tried=content(direct), acknowledged=content(direct))
    options = s3_options_for(s3_proxy.endpoint)
    failed: list[str] = []
    met = 0
    for name in [name for _ in range(2) for name in chance.sample(sorted(WORKS), len(WORKS))]:
        table = open_table(uri, storage_options=options)
        with s3_proxy.under(replace(fault, toxicity=chance.choice((0.2, 0.5, 1.0)))):
            try:
                WORKS[name](table, written)
            except AWAY as error:
                met += 1
                shown = "".join(traceback.format_exception(error))
                assert not any(secret in shown for secret in S3_SECRETS), name
            except BaseException as error:
                failed.append(f"{name}: {''.join(traceback.format_exception(error))}")
    assert not failed, "\n".join(failed)
    assert met, "no fault was met"
    # Whatever was left half done, the next one goes on.
    for name in ("stream", "put", "flush", "compact", "garbage", "scan", "get"):
        WORKS[name](open_table(uri, storage_options=s3_options), written)
    written.check(content(direct))
    checked(open_table(uri, storage_options=s3_options), written)
