"""Orders: the newest row of each key, and search over all of them, fresh ones included.

Records are JSON objects with `id`, `note` and `amount`; a record without a value deletes by its key. Rows of one id
meet in one shard by a hash, whatever partition they come from. `note` has a full-text index; a search right after a
batch sees that batch.

    spark-submit --jars "$(headgate jars show --comma)" examples/upserts_with_search.py \\
        --servers localhost:9092 --topic orders --table lake/orders --spark-checkpoint checkpoints/orders \\
        --once --search "late delivery"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import headgate

COLUMNS = "id bigint not null, note string, amount double"


def main(arguments: Sequence[str] | None = None) -> headgate.Table:
    """Stream the topic into the table, made where it is not there yet, and search it."""
    given = parsed(arguments)
    decode = headgate.decode.json(COLUMNS)
    sharding = headgate.bucket("id", 2)
    table = headgate.create_table(
        given.table, COLUMNS, primary_key="id", sharding=sharding, full_text="note", exist_ok=True
    )
    source = headgate.kafka.source(given.servers, given.topic)
    sink = headgate.ShardSink(table, source=source, decode=decode, stream="orders")
    spark = headgate.session()
    trigger = {"availableNow": True} if given.once else {"processingTime": "1 second"}
    frames = source.read(spark).writeStream.foreachBatch(sink).trigger(**trigger)
    query = frames.option("checkpointLocation", given.spark_checkpoint).start()
    headgate.run(query, sink)
    for hit in table.search(given.search, k=3).to_pylist():
        print(f"{hit['_score']:.3f}  order {hit['id']}: {hit['note']}")
    return table


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="Kafka's bootstrap addresses")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--table", required=True, help="a path or URI")
    parser.add_argument("--spark-checkpoint", required=True, help="Spark's checkpointLocation")
    parser.add_argument("--once", action="store_true", help="stop when the topic's present end is reached")
    parser.add_argument("--search", default="late delivery", metavar="TEXT", help="what to look for at the end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
