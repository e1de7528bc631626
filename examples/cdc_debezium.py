"""Change data capture: a database's table, followed by Debezium's change events, deletes included.

Values are Debezium's JSON envelopes (`op` c, r, u, d), bare or below `payload`. Debezium puts the changes of one row
into one partition, so one shard per partition keeps their order and needs no shuffle (`key_is_partitioned`).

    spark-submit --jars "$(headgate jars show --comma)" examples/cdc_debezium.py \\
        --servers localhost:9092 --topic shop.public.customers --table lake/customers \\
        --spark-checkpoint checkpoints/customers --once
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import headgate

COLUMNS = "id bigint not null, name string, email string"


def main(arguments: Sequence[str] | None = None) -> headgate.Table:
    """Stream the topic into the table, made where it is not there yet."""
    given = parsed(arguments)
    decode = headgate.decode.debezium(COLUMNS, primary_key="id")
    sharding = headgate.by_partition(key_is_partitioned=True)
    table = headgate.create_table(given.table, COLUMNS, primary_key="id", sharding=sharding, exist_ok=True)
    source = headgate.kafka.source(given.servers, given.topic)
    sink = headgate.ShardSink(table, source=source, decode=decode, stream="customers")
    spark = headgate.session()
    trigger = {"availableNow": True} if given.once else {"processingTime": "1 second"}
    frames = source.read(spark).writeStream.foreachBatch(sink).trigger(**trigger)
    query = frames.option("checkpointLocation", given.spark_checkpoint).start()
    headgate.run(query, sink)
    print(f"{table.uri}: {table.count()} customers")
    return table


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="Kafka's bootstrap addresses")
    parser.add_argument("--topic", default="shop.public.customers")
    parser.add_argument("--table", required=True, help="a path or URI")
    parser.add_argument("--spark-checkpoint", required=True, help="Spark's checkpointLocation")
    parser.add_argument("--once", action="store_true", help="stop when the topic's present end is reached")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
