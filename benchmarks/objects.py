"""Conditional against plain PUT, for every object store, beside a raw write and sync.

All candidates of one size take turns in one run, so that a slow moment of the machine meets them all.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import quantiles

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.report import output_option, show
from headgate.connectors.objects import ObjectStore, open_store
from headgate.connectors.objects.local import LocalStore
from headgate.connectors.objects.memory import MemoryStore

Put = Callable[[str, bytes], None]
SIZES = {"100 KB": 100_000, "8 MB": 8_000_000}
WAYS = 8


@click.command()
@click.option("--repeats", default=100, show_default=True, help="Puts of 100 KB per candidate; a fifth of it at 8 MB.")
@click.option("--root", type=click.Path(file_okay=False), default=None, help="Directory on the disk to measure.")
@click.option("--s3/--no-s3", default=True, show_default=True, help="Measure moto's S3 server too.")
@output_option
def main(repeats: int, root: str | None, s3: bool, output: str) -> None:
    """Latency (p50, p99) of one caller and puts per second of eight, per store, size and kind of PUT."""
    rows: list[dict[str, object]] = []
    with (
        tempfile.TemporaryDirectory(dir=root) as folder,
        s3_store(s3) as bucket,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        for size, length in SIZES.items():
            rounds = repeats if length < 1_000_000 else max(8, repeats // 5)
            candidates = candidates_in(f"{folder}/{length}", bucket)
            progress_of = progress.add_task(size, total=rounds)
            taken: dict[tuple[str, str], list[float]] = {who: [] for who in candidates}
            body = os.urandom(length)
            for round_ in range(rounds):
                for who, put in candidates.items():
                    began = time.perf_counter()
                    put(f"{'-'.join(who)}/{length}/{round_}", body)
                    taken[who].append((time.perf_counter() - began) * 1000)
                progress.advance(progress_of)
            raw = quantiles(taken["raw", "write + fsync"], n=100, method="inclusive")[49]
            for who, put in candidates.items():
                cuts = quantiles(taken[who], n=100, method="inclusive")
                rows.append(
                    {
                        "size": size,
                        "store": who[0],
                        "put": who[1],
                        "p50 ms": round(cuts[49], 3),
                        "p99 ms": round(cuts[98], 3),
                        "p50 / raw": round(cuts[49] / raw, 2),
                        f"{WAYS}-way per s": round(rate(put, f"{'-'.join(who)}/{length}", body, rounds), 1),
                    }
                )
    show(f"PUT on {os.cpu_count()} cores; S3 is moto in this process", rows, output)


def candidates_in(folder: str, bucket: ObjectStore | None) -> Mapping[tuple[str, str], Put]:
    """Every store and kind of PUT, by name."""
    named = LocalStore(f"{folder}/named")
    named.nameless_files = False  # type: ignore[misc]
    MemoryStore.drop("benchmark")
    stores: dict[str, ObjectStore] = {
        "local": LocalStore(f"{folder}/nameless"),
        "local, no O_TMPFILE": named,
        "memory": MemoryStore("memory://benchmark"),
    }
    if bucket is not None:
        stores["s3 (moto)"] = bucket
    found: dict[tuple[str, str], Put] = {("raw", "write + fsync"): raw_put(f"{folder}/raw")}
    for name, store in stores.items():
        found[name, "if absent"] = store.put_if_absent
        found[name, "overwrite"] = store.put_overwrite
    return found


def raw_put(folder: str) -> Put:
    """The floor: a file opened under its own name, written and synced; not atomic, its name not durable."""
    os.makedirs(folder)

    def put(key: str, body: bytes) -> None:
        file = os.open(os.path.join(folder, key.replace("/", "-")), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            os.write(file, body)
            os.fsync(file)
        finally:
            os.close(file)

    return put


def rate(put: Put, prefix: str, body: bytes, count: int) -> float:
    """Puts per second of several callers at once."""
    began = time.perf_counter()
    with ThreadPoolExecutor(WAYS) as pool:
        list(pool.map(lambda n: put(f"{prefix}/parallel-{n}", body), range(count)))
    return count / (time.perf_counter() - began)


@contextmanager
def s3_store(wanted: bool) -> Iterator[ObjectStore | None]:
    """A bucket of a server on loopback, if wanted."""
    if not wanted:
        yield None
        return
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/benchmark", method="PUT")).close()
    options = {
        "aws_access_key_id": "benchmark",
        "aws_secret_access_key": "benchmark",
        "aws_endpoint": f"http://{host}:{port}",
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    try:
        yield open_store("s3://benchmark/root", options)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
