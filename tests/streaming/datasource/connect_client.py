"""A client of Spark Connect: what the folder has goes into the table, then it ends."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import headgate

if __name__ == "__main__":
    server, face, folder, uri, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.remote(server).getOrCreate()
    frame = spark.readStream.schema("id long, note string").option("maxFilesPerTrigger", 1).json(folder)
    if face == "sink":
        sink = headgate.ShardSink(uri, stream="s", checkpoint_location=checkpoint)
        writer = frame.writeStream.foreachBatch(sink)
    else:
        headgate.register(spark)
        writer = frame.writeStream.format("headgate").option("streamName", "s").option("path", uri)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    if (error := query.exception()) is not None:
        raise error
    spark.stop()
