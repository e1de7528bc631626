"""JSON values to Arrow rows: the decoder beside json.loads, with no, few and only bad records.

The candidates take turns in one run; the best round counts. Seconds are of this process's
CPU, so that a busy machine changes them little.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import click
import pyarrow as pa
from rich.console import Console
from rich.progress import Progress

from benchmarks.report import output_option, show
from headgate.streaming.decode import api as decode

SCHEMA = (
    "order_id bigint NOT NULL, customer string, sku string, quantity int, price double, paid boolean, "
    "at timestamp, note string"
)

Spoil = Callable[[bytes], bytes]
SPOILED: dict[str, tuple[int, Spoil]] = {
    "all good": (0, lambda value: value),
    "0.1 % bad syntax": (1000, lambda value: value.replace(b":", b"", 1)),
    "0.1 % out of range": (1000, lambda value: value.replace(b'"quantity": ', b'"quantity": 99999999999')),
    "0.1 % a fraction": (1000, lambda value: value.replace(b', "price"', b'.5, "price"')),
    "0.1 % cut short": (1000, lambda value: value[:-9]),
    "5 % out of range": (20, lambda value: value.replace(b'"quantity": ', b'"quantity": 99999999999')),
    "all out of range": (1, lambda value: value.replace(b'"quantity": ', b'"quantity": 99999999999')),
    "all bad syntax": (1, lambda value: value.replace(b":", b"", 1)),
    "all no JSON": (1, lambda value: b"<" + value),
}
"""What is spoiled: one in so many, and how."""


@click.command()
@click.option("--rows", "count", default=200_000, show_default=True, help="Values per round, about 190 bytes each.")
@click.option("--rounds", default=3, show_default=True, help="Rounds; the best one counts.")
@output_option
def main(count: int, rounds: int, output: str) -> None:
    """Rows per CPU second, and the ratio to a loop of json.loads over the same values."""
    good = orders(count)
    size = sum(map(len, good)) // len(good)
    decoder = decode.json(SCHEMA)
    results: list[dict[str, object]] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("decode", total=len(SPOILED) * rounds)
        for name, (every, spoil) in SPOILED.items():
            values = [spoil(value) if every and i % every == every // 2 else value for i, value in enumerate(good)]
            column = pa.array(values, pa.binary())
            ours, loads, typed = float("inf"), float("inf"), float("inf")
            for _ in range(rounds):
                ours = min(ours, seconds(lambda column=column: decoder.decode(column)))  # type: ignore[misc]
                loads = min(loads, seconds(lambda values=values: loop(values)))  # type: ignore[misc]
                typed = min(typed, seconds(lambda values=values: table(values, decoder.schema)))  # type: ignore[misc]
                progress.advance(task)
            found = decoder.decode(column)
            results.append(
                {
                    "values": name,
                    "bad": len(found.bad),
                    "decoder rows/s": count / ours,
                    "json.loads rows/s": count / loads,
                    "json.loads + pa.array rows/s": count / typed,
                    "x json.loads": loads / ours,
                }
            )
    show(f"Decoding {count:,} values of {size} B", results, output)


def orders(count: int) -> list[bytes]:
    """The same orders in every run."""
    chance = random.Random(7)
    return [
        json.dumps(
            {
                "order_id": i,
                "customer": f"customer-{chance.randrange(10_000):06d}",
                "sku": f"SKU-{chance.randrange(1000):05d}-XL",
                "quantity": chance.randrange(1, 10),
                "price": chance.randrange(100_00) / 100,
                "paid": chance.random() < 0.5,
                "at": f"2024-05-{1 + i % 28:02d}T12:{i // 60 % 60:02d}:{i % 60:02d}.{i % 1_000_000:06d}Z",
                "note": "left at the front door",
            }
        ).encode()
        for i in range(count)
    ]


def seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def loop(values: list[bytes]) -> list[object]:
    """The least that Python can do: parse, with no types and no columns."""
    made: list[object] = []
    for value in values:
        try:
            made.append(json.loads(value))
        except ValueError:
            made.append(None)
    return made


def table(values: list[bytes], schema: pa.Schema) -> pa.Table:
    """The naive way to columns: untyped parse, then one column at a time, times left as text."""
    rows = [row for row in loop(values) if isinstance(row, dict)]
    columns = {}
    for field in schema:
        column = [row.get(field.name) for row in rows]
        try:
            columns[field.name] = pa.array(column, None if pa.types.is_timestamp(field.type) else field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # one bad value loses the column, which is why nobody does this
            columns[field.name] = pa.nulls(len(rows))
    return pa.table(columns)


if __name__ == "__main__":
    main()
