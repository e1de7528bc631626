"""A Spark application of its own: what the topic has goes into the table, then it ends."""

from __future__ import annotations

import sys

import headgate
from headgate.streaming.spark.session import local_session

if __name__ == "__main__":
    servers, topic, uri, checkpoint = sys.argv[1:]
    spark = local_session(2)
    headgate.register(spark)
    frame = headgate.kafka.read(spark, servers, topic, max_offsets_per_trigger=500)
    writer = frame.writeStream.format("headgate").option("checkpointLocation", checkpoint).option("decode", "json")
    writer.trigger(availableNow=True).start(uri).awaitTermination()
    spark.stop()
