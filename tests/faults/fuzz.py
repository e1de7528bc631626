"""Coverage-guided fuzzing of one codec: `python -m tests.faults.fuzz entry -max_total_time=150`.

Bytes end in a value or in an error of headgate's; anything else, or memory without bound, ends the process. What is
behind the name goes to libFuzzer.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["headgate"]):
    from headgate.checkpoints.log import codec
    from headgate.checkpoints.log.records import SchemaRecord
    from headgate.errors import HeadgateError
    from headgate.records import decode, encode
    from headgate.shards.home.record import TableRecord
    from headgate.shards.manifest.model import Manifest, decode_manifest, encode_manifest
    from headgate.shards.sharding import ByPartition
    from headgate.shards.wal.decoder import decode_entry
    from headgate.shards.wal.encoder import encode_barrier

NOBODY = uuid.UUID(int=0)

CODECS: Mapping[str, Callable[[memoryview], object]] = {
    "entry": decode_entry,
    "manifest": partial(decode_manifest, shard_id=NOBODY, version=1),
    "record": lambda data: codec.decode_record(bytes(data)),
    "table": lambda data: decode(TableRecord, bytes(data), "The table's record"),
}


SAMPLES: Mapping[str, Callable[[], bytes]] = {
    "entry": lambda: b"".join(map(bytes, encode_barrier(epoch=1).buffers)),
    "manifest": lambda: encode_manifest(Manifest(version=1, epoch=1, shard_id=NOBODY)),
    "record": lambda: encode(SchemaRecord(record_id="r", sequence=1, stream="s")),
    "table": lambda: encode(TableRecord(NOBODY, ByPartition(), (), (), None)),
}
"""What the fuzzer begins with."""


def main() -> None:
    name = sys.argv.pop(1)
    call = CODECS[name]
    corpus = Path(tempfile.mkdtemp(prefix="headgate-fuzz-"))
    (corpus / "sample").write_bytes(SAMPLES[name]())

    def one(data: bytes) -> None:
        with suppress(HeadgateError):
            call(memoryview(data))

    atheris.Setup([*sys.argv, str(corpus), "-rss_limit_mb=1024", "-print_final_stats=1"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
