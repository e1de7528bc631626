"""Logs: appended, never changed, and kept in the write-ahead logs alone.

Records are JSON objects with `at`, `service`, `level` and `message`. One shard per topic partition, so no row is
shuffled; no MemTables, so nothing is flushed: the WAL is the table, and `headgate wal expire` lets old entries go.

    spark-submit --jars "$(headgate jars show --comma)" examples/append_logs.py \\
        --servers localhost:9092 --topic logs --table lake/logs --spark-checkpoint checkpoints/logs --once
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import headgate

COLUMNS = "at timestamp, service string, level string, message string"


def main(arguments: Sequence[str] | None = None) -> headgate.Table:
    """Stream the topic into the table, made where it is not there yet."""
    given = parsed(arguments)
    decode = headgate.decode.json(COLUMNS)
    table = headgate.create_table(given.table, COLUMNS, sharding=headgate.by_partition(), exist_ok=True)
    source = headgate.kafka.source(given.servers, given.topic)
    sink = headgate.ShardSink(table, source=source, decode=decode, stream="logs", enable_memtable=False)
    spark = headgate.session()
    trigger = {"availableNow": True} if given.once else {"processingTime": "1 second"}
    frames = source.read(spark).writeStream.foreachBatch(sink).trigger(**trigger)
    query = frames.option("checkpointLocation", given.spark_checkpoint).start()
    headgate.run(query, sink)
    print(f"{table.uri}: {table.count()} lines")
    return table


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="Kafka's bootstrap addresses")
    parser.add_argument("--topic", default="logs")
    parser.add_argument("--table", required=True, help="a path or URI")
    parser.add_argument("--spark-checkpoint", required=True, help="Spark's checkpointLocation")
    parser.add_argument("--once", action="store_true", help="stop when the topic's present end is reached")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
