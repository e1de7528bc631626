"""`headgate cost`: requests and dollars per month of a stream on S3. Reads and writes nothing."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import click

from headgate.cli.options.duration import DURATION, Duration
from headgate.cli.output import Output, TextOutput, output_option
from headgate.cli.text.cost import MONTH, Prices, Requests, Workload, monthly, stored_gb

_DAY = timedelta(days=1)
_LENGTH = Duration(least=timedelta(milliseconds=1))
_COUNT = click.IntRange(min=1)


@click.command(
    epilog="""\b
Example:
  headgate cost --partitions 32 --trigger 10 --shards 8 --rows-per-day 50000000 --row-bytes 200
  headgate cost --partitions 64 --trigger 1 --shards 4 --wal-only --output json
"""
)
@click.option(
    "--partitions", type=_COUNT, required=True, help="Partitions of the topic; by_partition has one shard for each."
)
@click.option("--trigger", type=DURATION, required=True, metavar="TIME", help="Time between two batches: 10, 90s, 5m.")
@click.option("--shards", type=_COUNT, required=True, help="Shards of bucket(column, n), to compare with by_partition.")
@click.option(
    "--rows-per-day", type=click.FloatRange(min=0), metavar="N", help="Rows per day. Default: every batch is full."
)
@click.option(
    "--row-bytes", type=_COUNT, default=Workload.row_bytes, show_default=True, help="Average bytes of a stored row."
)
@click.option(
    "--memtable/--wal-only",
    default=True,
    show_default=True,
    help="Flush shards to SSTables, or keep rows in write-ahead logs only.",
)
@click.option("--flush-bytes", type=_COUNT, default=Workload.flush_bytes, show_default=True, help="maxMemtableSize.")
@click.option("--flush-age", type=_LENGTH, default="5m", show_default=True, metavar="TIME", help="maxMemtableAge.")
@click.option(
    "--checkpoint-interval",
    type=_LENGTH,
    default="10m",
    show_default=True,
    metavar="TIME",
    help="checkpointInterval.",
)
@click.option("--gc-interval", type=_LENGTH, default="1h", show_default=True, metavar="TIME", help="gcInterval.")
@click.option(
    "--keep", type=DURATION, default="30d", show_default=True, metavar="TIME", help="Days that rows are kept."
)
@click.option("--put-price", type=float, default=Prices.put_per_1000, show_default=True, help="$ per 1,000 PUTs.")
@click.option("--get-price", type=float, default=Prices.get_per_1000, show_default=True, help="$ per 1,000 GETs.")
@click.option("--list-price", type=float, default=Prices.list_per_1000, show_default=True, help="$ per 1,000 LISTs.")
@click.option("--storage-price", type=float, default=Prices.gb_month, show_default=True, help="$ per GB and month.")
@output_option
def cost(
    partitions: int,
    trigger: timedelta,
    shards: int,
    rows_per_day: float | None,
    row_bytes: int,
    memtable: bool,
    flush_bytes: int,
    flush_age: timedelta,
    checkpoint_interval: timedelta,
    gc_interval: timedelta,
    keep: timedelta,
    put_price: float,
    get_price: float,
    list_price: float,
    storage_price: float,
    output: Output,
) -> None:
    """Estimate a stream's S3 requests and cost per month (730 hours), sharded by partition and by bucket.

    A batch costs one PUT per shard with rows and one for its commit record, no GET and no LIST. Maintenance requests
    are added, as counted in tests. The default prices are list prices of S3 Standard: pass your own. Not included:
    Spark's own checkpoint, data transfer, and queries.
    """
    work = Workload(
        partitions=partitions,
        trigger=trigger.total_seconds(),
        shards=shards,
        rows_per_day=rows_per_day,
        row_bytes=row_bytes,
        memtable=memtable,
        flush_bytes=flush_bytes,
        flush_seconds=flush_age.total_seconds(),
        checkpoint_seconds=checkpoint_interval.total_seconds(),
        gc_per_day=_DAY / gc_interval,
        keep_days=keep / _DAY,
    )
    prices = Prices(put_price, get_price, list_price, storage_price)
    ways = {"by_partition": replace(work, shards=partitions), "bucket": work}
    scenarios = [_scenario(name, one, prices) for name, one in ways.items()]
    value: dict[str, Any] = {
        "month_hours": MONTH // 3600,
        "prices": asdict(prices),
        "batches_per_month": round(work.batches),
        "mode": "memtable" if memtable else "wal",
    }
    if isinstance(output, TextOutput):
        value |= {key: scenarios[0][key] for key in ("storage_gb", "storage_dollars")}
        shown = ("sharding", "shards", "puts_per_batch", "put", "get", "list", "dollars")
        value |= {"all_of_it": [{key: one[key] for key in shown} for one in scenarios]}
        value |= {f"{one['sharding']}_({one['shards']}_shards)": one["lines"] for one in scenarios}
    else:
        value |= {"scenarios": scenarios}
    output.record("Requests and dollars per month, estimated", value)


def _scenario(name: str, work: Workload, prices: Prices) -> dict[str, Any]:
    lines = monthly(work)
    total = sum((line.requests for line in lines), Requests())
    gigabytes = stored_gb(work)
    storage = None if gigabytes is None else gigabytes * prices.gb_month
    requests = prices.of(total)
    return {
        "sharding": name,
        "shards": work.shards,
        "puts_per_batch": round(work.entries_per_batch() + 1, 2),
        **_counts(total),
        "requests_dollars": round(requests, 2),
        "storage_gb": None if gigabytes is None else round(gigabytes, 1),
        "storage_dollars": None if storage is None else round(storage, 2),
        "dollars": round(requests + (storage or 0.0), 2),
        "lines": [
            {
                "what": line.what,
                "times": round(line.times),
                **_counts(line.requests),
                "dollars": round(prices.of(line.requests), 2),
            }
            for line in lines
        ],
    }


def _counts(requests: Requests) -> dict[str, int]:
    return {"put": round(requests.put), "get": round(requests.get), "list": round(requests.list)}
