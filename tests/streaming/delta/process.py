"""A driver that streams a topic into a table with a ledger, and mirrors the table, in a process that tests kill:
`python -m tests.streaming.delta.process '{…}'`. It tells {"pid": …} and {"batch": …}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(told: dict[str, Any]) -> None:
    """Until it is killed."""
    import headgate
    from headgate.streaming.delta.tables import delta_settings
    from headgate.streaming.spark.session import local_session
    from tests.support.driver import tell
    from tests.support.runs import SCHEMA

    small = {"spark.databricks.delta.snapshotPartitions": "2"}
    spark = local_session(2, log_file=Path(told["log"]), settings={**delta_settings(), **small})
    tell(pid=os.getpid())
    source = headgate.kafka.source(told["servers"], told["topic"], max_offsets_per_trigger=told["max_offsets"])
    sink = headgate.ShardSink(
        told["table"], stream="s", decode=headgate.decode.json(SCHEMA), source=source, ledger=told["ledger"]
    )

    def batch(frame: Any, number: int) -> None:
        sink(frame, number)
        tell(batch=number)

    writer = source.read(spark).writeStream.foreachBatch(batch).option("checkpointLocation", told["checkpoint"])
    query = writer.trigger(processingTime="0 seconds").start()
    mirror = headgate.DeltaMirror(told["table"], told["mirror"], maxBatchesPerTrigger=2)
    mirror.start(spark, checkpoint=told["mirror_checkpoint"])
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
