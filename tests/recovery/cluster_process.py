"""One stream on a Spark with two executor processes, in a process of its own:
`python -m tests.recovery.cluster_process '{…}'`.

The task that meets the record it is told kills its executor, and goes on beside the attempt that takes its place.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(told: dict[str, Any]) -> None:
    """Write everything that is there."""
    import headgate
    from headgate.streaming.spark.session import local_session
    from tests.support.runs import SCHEMA
    from tests.support.unsteady import Unsteady

    settings = {"spark.master": "local-cluster[2,1,1024]"}
    spark = local_session(2, log_file=Path(told["log"]), settings=settings)
    table = headgate.open_table(told["table"])
    decoder = Unsteady(headgate.decode.json(SCHEMA), Path(told["flag"]), "orphan", told["trigger"].encode())
    source = headgate.kafka.source(told["servers"], told["topic"], max_offsets_per_trigger=told["max_offsets"])
    sink = headgate.ShardSink(table, stream="s", decode=decoder, source=source, max_entry_bytes=1)
    writer = source.read(spark).writeStream.foreachBatch(sink).option("checkpointLocation", told["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
