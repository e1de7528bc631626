"""All that a table can do, over a network that breaks: it works, or says that the store is away. Never that anything is
lost or damaged, which is not so; never in words that are not ours; and nothing is left torn.

Replay with HEADGATE_SEED=<seed>.
"""

from __future__ import annotations

import os
import random
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import lance
import pyarrow as pa
import pytest
from clone_tables import DIRECT, content, open_stream, rows, run_batch, streamed
from network import LOST, RESET, Fault, Proxy, seed_of_run
from services import S3_SECRETS, s3_options_for
from stream_life import SCHEMA, ranges_of

from headgate.checkpoints.read_parts import part_batches
from headgate.checkpoints.read_plan import plan_read
from headgate.connectors.dataset_health import look_over
from headgate.connectors.lance import look
from headgate.connectors.objects import open_store
from headgate.connectors.row_ids import numbered_batches
from headgate.connectors.sstables import open_dataset, scan_dataset
from headgate.errors import DataLoss, Poisoned, Transient
from headgate.shards.sharding import by_partition
from headgate.streaming.fsck import fsck
from headgate.table import Table, create_table, open_table

pytestmark = [pytest.mark.s3, pytest.mark.real_s3]

AWAY = (Transient, Poisoned)


def get(table: Table, uri: str) -> None:
    """Of the table with a key that `with_a_key` made: rows of the base, of an SSTable and of the WAL."""
    found = open_table(f"{uri}-keyed", table.storage_options).get(keys(*range(1, 5)))
    assert sorted(found["id"].to_pylist()) == [1, 2, 3], "and 4 was never there"


def keys(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def with_a_key(uri: str, options: dict[str, str]) -> None:
    table = create_table(f"{uri}-keyed", SCHEMA, "id", by_partition(key_is_partitioned=True), storage_options=options)
    lance.write_dataset(pa.Table.from_batches([rows(1)]), table.uri, mode="append", storage_options=options)
    with table.writer(DIRECT) as writer:
        writer.put(rows(2))
        writer.flush_memtable()
        writer.put(rows(3))


def put(table: Table, uri: str) -> None:
    with table.writer(DIRECT) as writer:
        writer.put(rows(random.randrange(1 << 40)))
        writer.flush_memtable()


def checkpoint(table: Table, uri: str) -> None:
    taken = table.checkpoint(name=f"c-{uuid.uuid4().hex}", expires=60)
    table.drop_checkpoint(taken.name)


def checked(table: Table, uri: str) -> None:
    findings = fsck(table.uri, table.storage_options).findings
    assert findings == (), [(one.code, one) for one in findings]


def stream(table: Table, uri: str) -> None:
    driver = open_stream(table)
    last = driver.head.last
    number = 0 if last is None else last.batch_id + 1
    run_batch(driver, number, ranges_of(number))


WORKS: dict[str, Callable[[Table, str], object]] = {
    "scan": lambda table, uri: table.scan().read_all(),
    "shards": lambda table, uri: table.shards(),
    "get": get,
    "search": lambda table, uri: table.search("direct", "note"),
    "put": put,
    "stream": stream,
    "checkpoint": checkpoint,
    "flush": lambda table, uri: table.flush(),
    "compact": lambda table, uri: table.compact(),
    "clone": lambda table, uri: table.clone(f"{uri}-{uuid.uuid4().hex[:8]}", names=[DIRECT]),
    "deep clone": lambda table, uri: table.clone(f"{uri}-{uuid.uuid4().hex[:8]}", deep=True, names=[DIRECT]),
    "garbage": lambda table, uri: table.collect_garbage(min_age=timedelta(hours=1), apply=True),
    "fsck": checked,
    "checkpoint all": lambda table, uri: table.checkpoint("all"),
}


def test_what_lance_cannot_reach_is_away_and_neither_lost_nor_damaged(
    bucket: str, s3_options: dict[str, str], s3_proxy: Proxy
) -> None:
    uri = f"s3://{bucket}/t"
    streamed(uri, storage_options=s3_options, full_text=("note",))
    options = s3_options_for(s3_proxy.endpoint)
    store = open_store(uri, options)
    dataset = open_dataset(store)
    table = open_table(uri, options)
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
    print(f"HEADGATE_SEED={seed}")
    chance = random.Random(seed)
    uri = f"s3://{bucket}/t"
    direct, _ = streamed(uri, storage_options=s3_options, full_text=("note",))
    with_a_key(uri, s3_options)
    before = set(content(direct)[0])
    options = s3_options_for(s3_proxy.endpoint)
    failed: list[str] = []
    met = 0
    for name in [name for _ in range(2) for name in chance.sample(sorted(WORKS), len(WORKS))]:
        table = open_table(uri, options)
        with s3_proxy.under(replace(fault, toxicity=chance.choice((0.2, 0.5, 1.0)))):
            try:
                WORKS[name](table, uri)
            except AWAY as error:
                met += 1
                shown = "".join(traceback.format_exception(error))
                assert not any(secret in shown for secret in S3_SECRETS), name
            except BaseException as error:
                failed.append(f"{name}: {''.join(traceback.format_exception(error))}")
    assert not failed, f"HEADGATE_SEED={seed}\n" + "\n".join(failed)
    assert met, "no fault was met"
    # Whatever was left half done, the next one goes on.
    for name in ("stream", "put", "flush", "compact", "garbage", "scan", "get"):
        WORKS[name](open_table(uri, s3_options), uri)
    assert set(content(direct)[0]) >= before
    checked(open_table(uri, s3_options), uri)
