"""Reviews with embeddings: found by meaning, by words and by both, within a second of being produced.

Records are JSON objects with `id`, `text`, `stars` and `embedding`, which the producer computes. The table has a
full-text index on the text and searches the embeddings by cosine. While the stream runs, this program produces one more
review and searches until it finds it, which shows how fresh a search is.

Any function from a text to a list of numbers will do as the embedding: --embedding module:function names yours, for
example one around a sentence transformer. Without it `pieces` of this file is used, which needs no model and no
download: IT KNOWS SPELLING, NOT MEANING. Texts are near each other where they share words or pieces of words.

    spark-submit --jars "$(headgate jars show --comma)" examples/semantic_search.py --samples 1000 \\
        --servers localhost:9092 --topic reviews --table lake/reviews --spark-checkpoint checkpoints/reviews \\
        --search "late delivery"
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import headgate

Embedding = Callable[[str], Sequence[float]]

COLUMNS = "id bigint not null, text string, stars int, embedding array<float>"
DIMENSION = 256
PATIENCE = 60.0
"""Seconds until a produced review must be found."""


def pieces(text: str) -> list[float]:
    """A deterministic stand-in for an embedding: every word, and all its runs of three letters, add to a number that
    their hash chooses, up or down. It has no idea what words mean.
    """
    found = [0.0] * DIMENSION
    for word in text.lower().split():
        padded = f"<{word.strip('.,!?')}>"
        for piece in (padded, *(padded[start : start + 3] for start in range(len(padded) - 2))):
            number = int.from_bytes(hashlib.blake2b(piece.encode(), digest_size=8).digest(), "big")
            found[number % DIMENSION] += 1.0 if number >> 63 else -1.0
    length = math.hypot(*found) or 1.0
    return [one / length for one in found]


def main(arguments: Sequence[str] | None = None) -> headgate.Table:
    """Stream the topic into the table, made where it is not there yet, and search it."""
    given = parsed(arguments)
    embed = embedding(given.embedding)
    question = embed(given.search)
    table = headgate.create_table(
        given.table,
        COLUMNS,
        primary_key="id",
        sharding=headgate.bucket("id", 2),
        full_text="text",
        vector={"embedding": headgate.vector("cosine", dimension=len(question))},
        exist_ok=True,
    )
    if given.samples:
        produce(given.servers, given.topic, reviews(given.samples), embed)
    source = headgate.kafka.source(given.servers, given.topic)
    sink = headgate.ShardSink(table, source=source, decode=headgate.decode.json(table.schema), stream="reviews")
    spark = headgate.session()
    trigger = {"availableNow": True} if given.once else {"processingTime": "0 seconds"}
    frames = source.read(spark).writeStream.foreachBatch(sink).trigger(**trigger)
    query = frames.option("checkpointLocation", given.spark_checkpoint).start()
    if given.once:
        headgate.run(query, sink)
    else:
        try:
            print(f"produced and found by meaning after {seconds_until_found(given, table, embed):.2f} s")
        finally:
            query.stop()
            sink.close()
    for title, hits in (
        ("by meaning", table.nearest(question, k=3)),
        ("by words", table.search(given.search, k=3)),
        ("by both", table.hybrid(given.search, question, k=3)),
    ):
        print(title)
        for hit in hits.to_pylist():
            print(f"  review {hit['id']}, {hit['stars']} stars: {hit['text']}")
    return table


def seconds_until_found(given: argparse.Namespace, table: headgate.Table, embed: Embedding) -> float:
    """Produce one review, and search by its meaning until it comes."""
    number, text = time.time_ns(), f"{given.search}, said at {time.time():.3f}"
    review = {"id": number, "text": text, "stars": 1}
    produce(given.servers, given.topic, [review], embed)
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE:
        if table.nearest(embed(text), k=1, columns="id", filter=f"id = {number}").num_rows:
            return time.monotonic() - began
        time.sleep(0.01)
    raise SystemExit(f"Review {number} was not found within {PATIENCE:.0f} seconds: is the stream running?")


def reviews(count: int) -> Iterable[dict[str, Any]]:
    """Reviews that differ in what they are about, in words and in stars."""
    things = ("parcel", "delivery", "courier", "refund", "size", "colour", "battery", "manual")
    views = ("came a week too late", "was quick and friendly", "never arrived", "is just as described", "broke at once")
    for number in range(count):
        thing, view = things[number % len(things)], views[number % len(views)]
        yield {"id": number, "text": f"The {thing} {view}, order {number}", "stars": 1 + number % 5}


def produce(servers: str, topic: str, records: Iterable[dict[str, Any]], embed: Embedding) -> None:
    """Put reviews into the topic, each with its embedding."""
    from confluent_kafka import Producer

    # Idempotent: a retry never puts a record behind a later one.
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0})
    for record in records:
        value = json.dumps({**record, "embedding": list(embed(record["text"]))})
        producer.produce(topic, value.encode(), str(record["id"]).encode())
        producer.poll(0)
    if left := producer.flush(60):
        raise SystemExit(f"{left} records were not acknowledged within a minute.")


def embedding(name: str | None) -> Embedding:
    """The function that was named as module:function."""
    if name is None:
        return pieces
    module, _, function = name.partition(":")
    found: Embedding = getattr(import_module(module), function)
    return found


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="Kafka's bootstrap addresses")
    parser.add_argument("--topic", default="reviews")
    parser.add_argument("--table", required=True, help="a path or URI")
    parser.add_argument("--spark-checkpoint", required=True, help="Spark's checkpointLocation")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="produce N reviews first")
    parser.add_argument("--embedding", metavar="MODULE:FUNCTION", help="from a text to numbers; default: see above")
    parser.add_argument("--once", action="store_true", help="stop when the topic's present end is reached")
    parser.add_argument("--search", default="late delivery", metavar="TEXT", help="what to look for")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
