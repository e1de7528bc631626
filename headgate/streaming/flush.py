"""Flushing the shards of a stream: decided rows of the WAL become SSTables, on executors.

The driver says which positions count and commits the manifest; the rows never pass through it.
Promises: replay_after never passes the last position that a commit record lists (R1); a flush that
dies anywhere leaves a folder that nothing names, and is simply done again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.checkpoints.log_state import Positions
from headgate.checkpoints.visibility import Visible
from headgate.errors import from_json
from headgate.shards.generation import commit_generation
from headgate.shards.manifest import Manifest, SsTable
from headgate.shards.memtable import MemTable
from headgate.shards.replay import uncovered
from headgate.shards.shard import Claim
from headgate.shards.sstable import write_sstable
from headgate.shards.tailer import WalTailer
from headgate.streaming.task import FINAL, RESULT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class FlushJob:
    """One shard, and what of it is to become the next SSTable."""

    name: str
    claim: Claim
    manifest: Manifest
    visible: Positions
    """Which entries count, above replay_after."""
    last: int
    """The last of them."""
    max_bytes: int
    """The SSTable ends with the entry that passes this size; the rest is for the next one."""


def flush(spark: SparkSession, jobs: list[FlushJob]) -> dict[str, Manifest]:
    """Run the jobs as one Spark job, and commit what they wrote. Per shard the manifest as it stands.

    Raises Fenced where a successor has the shard, DataLoss where a listed entry is not what it was; what
    was written is garbage then.
    """
    if not jobs:
        return {}
    frame = spark.range(0, len(jobs), 1, len(jobs)).mapInArrow(partial(flush_task, tuple(jobs)), RESULT)
    by_name = {job.name: job for job in jobs}
    done: dict[str, Manifest] = {}
    for row in frame.collect():
        result = json.loads(row[0])
        if "error" in result:
            raise from_json(result["error"])
        job = by_name[result["name"]]
        done[job.name] = commit_generation(
            job.claim.shard.manifests,
            job.claim,
            SsTable(**result["sstable"]),
            started_from=job.manifest.replay_after,
            last_position=result["last_position"],
        )
    return done


def flush_task(jobs: tuple[FlushJob, ...], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: one SSTable per job, durable; nothing names it yet."""
    for batch in batches:
        lines = []
        for number in batch.column(0).to_pylist():
            try:
                lines.append(json.dumps(_flush_one(jobs[number])))
            except FINAL as error:
                lines.append(json.dumps({"error": error.located(name=jobs[number].name).to_json()}, default=str))
        yield pa.record_batch({"result": pa.array(lines, pa.string())})


def _flush_one(job: FlushJob) -> dict[str, Any]:
    shard, start = job.claim.shard, job.manifest.replay_after + 1
    table = MemTable(shard.home.schema, job.manifest.generation, job.manifest.replay_after)
    visible = Visible({shard.id: job.visible}, shard.home.uri)
    entries = visible.visible_entries(shard.id, WalTailer(shard).read(start, job.last + 1), start, job.last + 1)
    for part in uncovered(shard, job.manifest, entries):
        table.add(part.batches, part.position)
        if table.nbytes >= job.max_bytes:
            break
    sstable = asdict(write_sstable(shard, (), table))
    del sstable["unknown"]
    return {"name": job.name, "sstable": sstable, "last_position": table.last_position}
