"""Rewinds a stream: it continues at other offsets than its last batch's end, with a record in the commit log.

No row is removed. Records that are read again are written again: without a key their rows are duplicated, with a key
they replace themselves. Skipped records are never read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from headgate.checkpoints.log.commit_log import read_head
from headgate.checkpoints.log.names import BATCH_STREAM, list_streams, no_stream
from headgate.checkpoints.log.records import OffsetMove, RewindRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.compare import SparkLook
from headgate.checkpoints.spark.rewind_plan import Partition, is_there, plan_adoption, plan_rewind
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import InvalidInput
from headgate.shards.shard import TableHome
from headgate.steps import step


@dataclass(frozen=True)
class Rewound:
    head: Head
    moves: tuple[OffsetMove, ...]
    record: RewindRecord | None
    """None if the stream was there already, and nothing was written."""


def stream_head(home: TableHome, stream: str) -> Head:
    """A stream's head. Reads only. Raises NotFound if the stream never existed."""
    if stream == BATCH_STREAM:
        raise InvalidInput("Batch writes have no offsets: there is nothing to rewind.", table=home.uri)
    head = read_head(home, stream)
    if head.sequence == 0:
        raise no_stream(stream, list_streams(home.records), home.uri)
    return head


def rewind(
    home: TableHome,
    stream: str,
    wanted: Mapping[Partition, int],
    *,
    by: str = "",
    reason: str = "",
) -> Rewound:
    """Send a stream to these offsets. THIS WRITES, AND IT FENCES A DRIVER THAT STILL RUNS THE STREAM.

    1. read the log: refuse invalid offsets; if the stream is there already, end here.
    2. take over the stream: claims, barriers, open record. From here no other driver commits.
    3. plan again from the head that the open record fixed: the stream may have gone on meanwhile.
    4. put the rewind record at the log's next sequence. From here the next batch must start at the new offsets.

    A crash before 4 leaves the stream where it was, one after 4 leaves it rewound; the same call completes it. Spark's
    checkpoint is not touched: it no longer matches the stream, and `rebuild` creates it anew. Raises InvalidInput,
    NotFound, Fenced, Poisoned, DataLoss, Transient.
    """
    step("rewind look")
    head = stream_head(home, stream)
    return _sent(home, head, partial(plan_rewind, wanted=wanted), by=by, reason=reason)


def adopt(
    home: TableHome,
    stream: str,
    spark: SparkLook,
    *,
    by: str = "",
    reason: str = "",
) -> Rewound:
    """Let a stream continue where another table's Spark checkpoint is (R23). THIS WRITES, AND IT FENCES as `rewind`
    does.

    The steps and the record are those of a rewind; the stream need not exist in this table yet. What the checkpoint's
    batches have read so far is never in the table. Raises as `rewind` does.
    """
    step("rewind look")
    head = read_head(home, stream)
    return _sent(home, head, partial(plan_adoption, spark=spark), by=by, reason=reason)


def _sent(
    home: TableHome,
    head: Head,
    plan: Callable[[Head], tuple[OffsetMove, ...]],
    *,
    by: str,
    reason: str,
) -> Rewound:
    """Steps 2 to 4 of a rewind, for a stream with this head."""
    moves = plan(head)
    if is_there(head, moves):
        return Rewound(head, moves, None)
    step("take over")
    driver = StreamDriver.open(home, head.stream, str(uuid.uuid4()), ())
    moves = plan(driver.head)
    if is_there(driver.head, moves):
        return Rewound(driver.head, moves, None)
    record = driver.rewind(moves, by=by, reason=reason)
    step("rewound")
    return Rewound(driver.head, moves, record)
