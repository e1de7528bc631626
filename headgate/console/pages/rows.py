"""Rows of one instant with the place of each, and searches. They read what the same command reads."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, get_args

import pyarrow as pa

from headgate.checkpoints.snapshots.at_checkpoint import read_checkpoint
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.connectors.lance.filters import filtered
from headgate.console.pages import words
from headgate.console.watch.watcher import WatchedTable
from headgate.errors import HeadgateError, InvalidInput
from headgate.search.query.parts import SCORE
from headgate.search.query.ranking import Match
from headgate.search.vectors.base import DISTANCE
from headgate.search.vectors.fusion import Fuse
from headgate.search.vectors.hybrid import RELEVANCE
from headgate.shards.rows.dedup import living
from headgate.shards.rows.view import Layer, ShardDelta, TableView
from headgate.shards.vectors import is_vector
from headgate.shards.wal.appender import read_header
from headgate.table.table import Table

LIMITS = (25, 100, 500)
NUMBER = "_headgate_number"
"""A column that numbers the fresh rows."""
HEADERS = 20
"""Maximum entries per page whose offsets are read."""
MOST_HITS = 100
MOST_QUERY = 100_000
"""Characters of a vector as text."""
MOST_FILTER = 1_000
"""Characters of a filter: the console may run in a driver, which pages must not keep busy. `check_filter` says how
deeply a filter may nest."""


@dataclass(frozen=True)
class RowLine:
    """One row and its place."""

    layer: str
    """tail, SSTable or base."""
    where: str
    offsets: str
    values: tuple[Any, ...]


def rows_page(table: WatchedTable, asked: Mapping[str, str]) -> dict[str, Any]:
    """The first rows of an instant that pass a filter. The page shows what is invalid in the request."""
    limit = next((one for one in LIMITS if str(one) == asked.get("limit")), LIMITS[0])
    filter, checkpoint = asked.get("filter", "").strip() or None, asked.get("checkpoint") or None
    values: dict[str, Any] = {"limit": limit, "limits": LIMITS, "filter": filter or "", "checkpoint": checkpoint}
    with table.reading() as reader:
        values["checkpoints"] = [one.checkpoint.name for one in reversed(reader.checkpoints())][:50]
        try:
            _check_filter_size(filter)
            at = reader if checkpoint is None else table.at(checkpoint)
            lines = _lines(at, _view(at), filter, limit + 1, table.now.names)
        except InvalidInput as error:
            return {**values, "columns": [], "rows": [], "more": False, "wrong": error.what}
    columns = [(field.name, str(field.type), words.is_right(field.type)) for field in at.schema]
    return {**values, "columns": columns, "rows": lines[:limit], "more": len(lines) > limit, "wrong": None}


def _view(table: Table) -> TableView:
    if table.at is not None:
        return read_checkpoint(table.home, table.at)
    return read_snapshot(table.home, table.shard_ids(), cache=table.cache)


def _lines(table: Table, view: TableView, filter: str | None, most: int, names: Mapping[Any, str]) -> list[RowLine]:
    """Rows of the newest layers first: the tails of all shards, their SSTables, the base."""
    found: list[RowLine] = []
    for layer, batches in view.layers(None, filter):
        shard = "" if layer.delta is None else names.get(layer.delta.shard.id, str(layer.delta.shard.id))
        if layer.delta is not None and layer.sstable is None:
            found += _tail(layer.delta, shard, filter, table.schema.names, most - len(found))
        else:
            for batch in batches:
                found += _stored(layer, shard, batch.slice(0, most - len(found)))
                if len(found) >= most:
                    return found
        if len(found) >= most:
            return found
    return found


def _stored(layer: Layer, shard: str, batch: pa.RecordBatch) -> Iterator[RowLine]:
    kind = "base" if layer.sstable is None else "SSTable"
    where = "base" if layer.sstable is None else f"{shard}, generation {layer.sstable.generation}"
    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield RowLine(kind, where, "", row)


def _tail(delta: ShardDelta, shard: str, filter: str | None, columns: list[str], most: int) -> Iterator[RowLine]:
    """Fresh rows, each with its entry and the source offsets in the entry's header."""
    rows = filtered(living(delta.newest(NUMBER)), filter).slice(0, most)
    ends = [*accumulate(count for _, count in delta.entries)]
    offsets: dict[int, str] = {}
    for number, *row in zip(*(rows.column(name).to_pylist() for name in (NUMBER, *columns)), strict=True):
        place = bisect_right(ends, number)
        if place >= len(delta.entries):
            yield RowLine("tail", shard, "", tuple(row))
            continue
        position = delta.entries[place][0]
        if position not in offsets and len(offsets) < HEADERS:
            offsets[position] = _offsets(delta, position)
        yield RowLine("tail", f"{shard}, entry {position:,}", offsets.get(position, ""), tuple(row))


def _offsets(delta: ShardDelta, position: int) -> str:
    try:
        ranges = read_header(delta.shard, position).tags.sources
    except HeadgateError:
        return ""
    shown = ", ".join(f"{one.topic}/{one.partition} [{one.start}, {one.until})" for one in ranges[:3])
    return shown + (f" and {len(ranges) - 3} more" if len(ranges) > 3 else "")


# -- search --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hit:
    """One row of the result."""

    measures: tuple[tuple[str, str], ...]
    pieces: tuple[tuple[str, bool], ...]
    """The searched text in pieces, each with True if it matched."""
    values: tuple[tuple[str, Any], ...]


def search_page(table: WatchedTable, asked: Mapping[str, str]) -> dict[str, Any]:
    """Rows by words, by a vector, or by both. The page shows what is invalid in the request."""
    text, vector = asked.get("q", "").strip(), asked.get("vector", "").strip()
    hits = asked.get("k", "")
    k = min(MOST_HITS, int(hits)) if hits.isdecimal() and len(hits) < 8 and int(hits) else 10
    match = asked.get("match") if asked.get("match") in get_args(Match) else "any"
    fuse = asked.get("fuse") if asked.get("fuse") in get_args(Fuse) else "rrf"
    filter = asked.get("filter", "").strip()
    now = table.opened()
    values: dict[str, Any] = {
        "q": text,
        "vector": vector,
        "k": k,
        "match": match,
        "matches": get_args(Match),
        "fuse": fuse,
        "fuses": get_args(Fuse),
        "filter": filter,
        "texts": now.full_text,
        "vectors": now.vectors,
        "column": asked.get("column") or "",
        "vector_column": asked.get("vector_column") or "",
        "hits": [],
        "wrong": None,
        "searched": bool(text or vector),
    }
    if not values["searched"]:
        return values
    with table.reading() as reader:
        try:
            values["hits"] = _hits(reader, values)
        except InvalidInput as error:
            values["wrong"] = error.what
    return values


def _hits(table: Table, asked: Mapping[str, Any]) -> list[Hit]:
    column, vector_column = asked["column"] or None, asked["vector_column"] or None
    _check_filter_size(asked["filter"])
    plain = [field.name for field in table.schema if not is_vector(field.type)]
    shared: dict[str, Any] = {"columns": plain, "filter": asked["filter"] or None, "k": asked["k"]}
    query = _numbers(asked["vector"]) if asked["vector"] else None
    if not asked["q"]:
        return _shown(table.nearest(query, column=vector_column, **shared), None, None)
    searcher = table.searcher()
    column = column or searcher.only_column()
    if query is None:
        found = table.search(asked["q"], column=column, match=asked["match"], **shared)
    else:
        both = {"column": column, "vector_column": vector_column, "match": asked["match"], "fuse": asked["fuse"]}
        found = table.hybrid(asked["q"], query, **both, **shared)
    return _shown(found, column, searcher.marker(asked["q"], column))


def _shown(found: pa.Table, column: str | None, marker: Any) -> list[Hit]:
    hits = []
    for row in found.to_pylist():
        names = ((RELEVANCE, "relevance"), (SCORE, "score"), (DISTANCE, "distance"))
        measured = [(text, row.pop(name)) for name, text in names if name in row]
        text = row.pop(column) if column is not None and isinstance(row.get(column), str) else None
        pieces = () if text is None else tuple(marker(text[: words.MOST_SHOWN]))
        if text is not None and len(text) > words.MOST_SHOWN:
            pieces = (*pieces, (f"… ({len(text):,} characters)", False))
        shown = tuple((text, f"{value:.4g}") for text, value in measured if value is not None)
        hits.append(Hit(shown, pieces, tuple(row.items())))
    return hits


def _check_filter_size(filter: str | None) -> None:
    if filter is not None and len(filter) > MOST_FILTER:
        raise InvalidInput(
            f"The filter has {len(filter):,} characters. The console accepts {MOST_FILTER:,}; `table scan` more."
        )


def _numbers(text: str) -> list[float]:
    """A vector from a JSON list. A file name is not accepted: the file would be read on this machine."""
    if len(text) > MOST_QUERY:
        raise InvalidInput(f"The vector has more than {MOST_QUERY:,} characters.")
    try:
        found = json.loads(text)
        if not isinstance(found, list) or not found:
            raise ValueError
        return [float(one) for one in found]
    except (ValueError, TypeError, RecursionError):
        raise InvalidInput("The vector must be a list of numbers: [0.1, 0.2, …].") from None
