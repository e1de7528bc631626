"""A Spark application whose credentials are storage options: it streams, reads and fails, by every face."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import headgate
from headgate.streaming.spark.session import local_session


def main(folder: Path, tables: str, options: dict[str, str]) -> None:
    """Into the tables `write` and `sink`. Tell in JSON lines what was read, and how what must fail has ended."""
    events = {"enabled": "true", "compress": "false", "dir": (folder / "events").as_uri()}
    settings = {f"spark.eventLog.{name}": value for name, value in events.items()}
    spark = local_session(2, settings=settings)
    spark.sparkContext.setLogLevel("INFO")
    headgate.register(spark)
    storage = {f"storage.{name}": value for name, value in options.items()}
    rows = spark.readStream.schema("id long").json(str(folder / "rows"))

    def write(place: str, name: str) -> None:
        writer = rows.writeStream.format("headgate").options(checkpointLocation=str(folder / name), **storage)
        query = writer.trigger(availableNow=True).start(place)
        query.awaitTermination()
        print(query.lastProgress)

    def sink(place: str, name: str) -> None:
        each = headgate.ShardSink(place, stream=name, storage_options=options)
        print(each, each.options)
        writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(folder / name))
        writer.trigger(availableNow=True).start().awaitTermination()

    def read(place: str, name: str) -> None:
        frame = spark.read.format("headgate").options(**storage).load(place)
        frame.explain("extended")
        frame.explain("formatted")
        print(json.dumps({"rows": sorted(row.id for row in frame.collect()), "name": name}))

    def follow(place: str, name: str) -> None:
        log = headgate.read_log(spark, place, **storage)
        writer = log.writeStream.format("json").options(checkpointLocation=str(folder / name), path=str(folder / "log"))
        writer.trigger(availableNow=True).start().awaitTermination()

    for work, table in ((write, "write"), (sink, "sink"), (read, "write"), (read, "sink"), (follow, "sink")):
        work(f"{tables}/{table}", work.__name__)
        try:
            work(f"{tables}/not-there", f"{work.__name__}-fails")
        except Exception as error:
            print(json.dumps({"failed": work.__name__, "says": str(error)}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.load(sys.stdin))
