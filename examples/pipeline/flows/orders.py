"""A flow from a topic into a table that is there already; every row exactly once, by Spark's checkpoint of the flow.

Tables with MemTables, updates in order over several shards, and maintenance are ShardSink's.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import headgate

spark = SparkSession.active()
headgate.register(spark)

dp.create_sink(
    "orders",
    "headgate",
    {"path": spark.conf.get("orders.table"), "streamName": "orders", "decode": "json"},
)


@dp.append_flow(target="orders")
def from_the_topic() -> DataFrame:
    """Kafka's own frame: the tasks decode the values."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", spark.conf.get("orders.servers"))
    return source.option("subscribe", spark.conf.get("orders.topic")).option("startingOffsets", "earliest").load()
