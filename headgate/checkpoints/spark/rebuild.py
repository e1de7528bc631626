"""Rebuilds Spark's checkpoint directory from a stream's head, in Spark's own format.

The new query has finished batch N, the last one that the table has, and continues with N + 1 exactly at the table's
offsets. Promises:
1. `commits/N` comes last. If a crash leaves the directory without it, that is harmless: Spark then runs batch N of the
   new query again, which reads nothing, because its start and its end are the same offsets.
2. Nothing is overwritten: every file is put if absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headgate import clock
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.directory import SourceOffsets
from headgate.connectors.objects import ObjectStore
from headgate.errors import AlreadyExists, InvalidInput
from headgate.steps import step

_NOTHING_YET = "-"
"""What Spark writes for a source that has no offset yet."""

_INITIAL = b"\0v1\n"
"""First bytes of the file that says where a Kafka source began; the zero byte is for compatibility with Spark 2.0."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The sources of the query in Spark's order: the name and the topics of each (None if it is not Kafka)."""

    sources: tuple[tuple[str, frozenset[str] | None], ...]

    @classmethod
    def given(cls, topics: Sequence[Iterable[str]], opaque: Iterable[str]) -> Layout:
        """Kafka sources with these topics, one after the other, in the places that other sources leave free."""
        others = set(opaque)
        if not all(name.isdigit() for name in others):
            raise InvalidInput(
                f"The query names its sources ({', '.join(sorted(others))}), and their order is unknown.",
                advice="restore the Spark checkpoint, or start a new one with the offsets that `headgate status` shows",
            )
        found: list[tuple[str, frozenset[str] | None]] = []
        waiting = [frozenset(names) for names in topics]
        while waiting or any(int(name) >= len(found) for name in others):
            number = str(len(found))
            if number not in others and not waiting:
                raise InvalidInput(f"The query had a source {number} that is not in the commit log.")
            found.append((number, None if number in others else waiting.pop(0)))
        return cls(tuple(found))

    @classmethod
    def as_was(cls, sources: Iterable[SourceOffsets], last: BatchRecord) -> Layout | None:
        """The layout of an older batch of the same query; None if it does not have the topics of the last one."""
        found = tuple(
            (one.source, None if one.kafka is None else frozenset(topic for topic, _ in one.kafka)) for one in sources
        )
        topics = [topic for _, names in found for topic in names or ()]
        numbered = [name for name, _ in found] == [str(number) for number in range(len(found))]
        fits = sorted(topics) == sorted({part.topic for part in last.sources})
        return cls(found) if found and fits and numbered else None


def rebuilt_files(
    head: Head, query_id: str, layout: Layout | None = None, *, now_ms: int | None = None
) -> list[tuple[str, bytes]]:
    """The files of the directory, in the order in which they must be written. Pure but for the time in them.

    Without a layout all topics belong to one Kafka source. Raises InvalidInput if the stream has no batch, or the
    layout does not name every topic once.
    """
    last = head.last
    if last is None:
        raise InvalidInput(
            f"Stream {head.stream!r} has never committed a batch, so there is nothing to rebuild.",
            advice="start the query with an empty checkpoint directory",
        )
    layout = layout or Layout.given(
        [topics] if (topics := {part.topic for part in last.sources}) else [], _opaque(last)
    )
    lines = _offset_lines(head, last, layout)
    batch = last.batch_id
    stamp = int(clock.wall() * 1000) if now_ms is None else now_ms
    meta = {"batchWatermarkMs": 0, "batchTimestampMs": stamp, "conf": {}}
    offsets = "\n".join(["v1", _compact(meta), *lines.values()]).encode()
    files = [_metadata(query_id)]
    # For a source that has read nothing yet, Spark's own options decide where it begins.
    begun = [name for name, topics in layout.sources if topics is not None and lines[name] != _NOTHING_YET]
    files += [(f"sources/{name}/0", _INITIAL + lines[name].encode()) for name in begun]
    # Spark also reads the batch before the last one.
    files += [(f"offsets/{number}", offsets) for number in (batch - 1, batch) if number >= 0]
    return [*files, (f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')]


def begun_files(query_id: str, begun: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """The files of a query that has not logged a batch; `begun` has Spark's own files that say where its
    sources began.
    """
    return [_metadata(query_id), *begun.items()]


def write_files(target: ObjectStore, files: Iterable[tuple[str, bytes]]) -> None:
    """Put the files in order. Raises InvalidInput if one exists with other content: nothing is replaced."""
    for key, data in files:
        step(key)
        try:
            target.put_if_absent(key, data)
        except AlreadyExists as error:
            if bytes(target.get(key)) != data:
                raise InvalidInput(
                    f"Another process writes to the Spark checkpoint: {key} exists already.",
                    checkpoint=target.uri,
                    advice="stop the query that uses this directory, then run `headgate recover` again",
                ) from error


def _offset_lines(head: Head, last: BatchRecord, layout: Layout) -> dict[str, str]:
    """Each source's offsets in Spark's format."""
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), start in sorted(head.next_starts().items()):
        ends.setdefault(topic, {})[str(partition)] = start
    opaque: Mapping[str, str] = {part.source: part.until for part in last.opaque}
    lines: dict[str, str] = {}
    for name, topics in layout.sources:
        if topics is None:
            lines[name] = opaque.get(name, _NOTHING_YET)
        else:
            own = {topic: ends.pop(topic) for topic in sorted(topics & ends.keys())}
            lines[name] = _compact(own) if own else _NOTHING_YET
    if ends:
        raise InvalidInput(
            f"Topic {next(iter(ends))!r} must belong to exactly one of the query's sources.",
            advice="name the topics of each Kafka source of the query, in its order: --source a,b --source c",
        )
    return lines


def _metadata(query_id: str) -> tuple[str, bytes]:
    return "metadata", _compact({"id": query_id}).encode()


def _opaque(last: BatchRecord) -> list[str]:
    return [part.source for part in last.opaque]


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
