"""Bytes that are small and ask for much: `python -m tests.faults.bombs` decodes each, and tells how it ended and how
many megabytes it took above what the process had before.
"""

from __future__ import annotations

import http.server
import json
import struct
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa

from headgate.checkpoints.log import codec
from headgate.checkpoints.spark.compare import look_at_spark
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.connectors.kafka.registry import SchemaRegistry
from headgate.errors import HeadgateError
from headgate.records import decode
from headgate.shards.home.record import TableRecord
from headgate.shards.manifest.model import decode_manifest
from headgate.shards.wal.decoder import decode_entry

SHARD = uuid.UUID(int=5)
DEEP = 100_000


def _entry(schema: pa.Schema, *batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _nested() -> bytes:
    kind: pa.DataType = pa.int64()
    for _ in range(500):
        kind = pa.list_(kind)
    schema = pa.schema([pa.field("id", kind)], metadata={"writer_epoch": "1"})
    return _entry(schema)


def _counts() -> bytes:
    """A batch that says it has 2**40 rows."""
    batch = pa.record_batch([pa.array([77_777], pa.int64())], names=["id"])
    schema = batch.schema.with_metadata({"writer_epoch": "1"})
    found = _entry(schema, batch.replace_schema_metadata({"writer_epoch": "1"}))
    body = found.index(struct.pack("<q", 77_777))
    head, tail = found[: body - 1], found[body - 1 :]
    return head.replace(struct.pack("<q", 1), struct.pack("<q", 1 << 40)) + tail


def _claimed() -> bytes:
    """A message that says it has two gigabytes of metadata."""
    return b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1) + b"x" * 64


def _manifest(field: bytes) -> bytes:
    """As many empty parts as fit."""
    return field * ((16 << 20) // len(field) - 1)


ENTRIES: Mapping[str, Callable[[], bytes]] = {
    "nested": _nested,
    "counts": _counts,
    "claimed length": _claimed,
}
JSON: Mapping[str, bytes] = {
    "many lists": b'{"format": 1, "x": [' + b"[]," * (8 << 20) + b"[]]}",
    "many numbers": b'{"format": 1, "x": [' + b"1," * (16 << 20) + b"1]}",
    "nested lists": b'{"format": 1, "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "nested objects": b'{"x": ' * DEEP + b"1" + b"}" * DEEP,
    "a long number": b'{"format": ' + b"9" * (4 << 20) + b"}",
}


def cases() -> Mapping[str, Callable[[], object]]:
    """By name, a call that must end in a HeadgateError, or have told the damage. What it decodes is made before."""
    found: dict[str, Callable[[], object]] = {}
    for name, make in ENTRIES.items():
        found[f"entry: {name}"] = partial(decode_entry, memoryview(make()))
    for name, part in {"SSTables": b"\x42\x00", "fields": b"\x5a\x00", "unknown": b"\xfa\x7f\x00"}.items():
        found[f"manifest: {name}"] = partial(decode_manifest, _manifest(part), shard_id=SHARD, version=1)
    for name, data in JSON.items():
        found[f"commit record: {name}"] = partial(codec.decode_record, data)
        found[f"fold: {name}"] = partial(codec.decode_fold, data)
        found[f"table.json: {name}"] = partial(decode, TableRecord, data, "The table's record")
        found[f"Spark's offsets: {name}"] = partial(spark, data)
        found[f"registry: {name}"] = partial(registry, _always(data))
    found["registry: references without end"] = lambda: registry(_endless)
    found["registry: no schema"] = lambda: registry(lambda path: b'{"references": [7]}')
    return found


def spark(data: bytes) -> object:
    """The damage is told, not raised."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("offsets", "commits"):
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "0").write_bytes(b"v1\n" + data + b"\n" + data)
        (Path(folder) / "metadata").write_bytes(data)
        if not look_at_spark(SparkCheckpoint(folder)).faults:
            return "no fault"
        SparkCheckpoint(folder).offsets(0)
    return None


def _always(data: bytes) -> Callable[[str], bytes]:
    return lambda path: data


def _endless(path: str) -> bytes:
    """Each schema refers to the next one."""
    number = int(path.rpartition("/")[2]) + 1
    return json.dumps({"schema": "{}", "references": [{"subject": f"s{number}", "version": number}]}).encode()


def registry(answer: Callable[[str], bytes]) -> object:
    """A registry that gives these answers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = answer(self.path)
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        return SchemaRegistry(f"http://127.0.0.1:{server.server_port}").schemas(1)
    finally:
        server.shutdown()
        server.server_close()


def memory(name: str) -> float:
    """Megabytes, as the kernel says."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def main() -> None:
    for name, call in cases().items():
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS:")
        try:
            ended = f"no error: {call()!r:.80}"
        except HeadgateError as error:
            ended = f"HeadgateError {type(error).__name__}"
        except BaseException as error:
            ended = f"{type(error).__name__}: {error!s:.80}"
        print(json.dumps([name, ended, round(memory("VmHWM:") - before, 1)]), flush=True)


if __name__ == "__main__":
    main()
