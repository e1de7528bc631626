"""Real Lance datasets with text, indexes staged by native builders, and what a search answers."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from headgate.connectors.lance import slots as index_slots
from headgate.connectors.lance.index import commit_segments, look_index
from headgate.connectors.objects import ObjectStore, open_store
from headgate.retry import Retry
from headgate.search.build.commit import native_segment
from headgate.search.build.jobs import BuildJob, build
from headgate.search.finalize.finalize import finalize
from headgate.search.finalize.marker import read_segment
from headgate.search.finalize.segment import MARKER, Built, IndexFolder, Segment, together
from headgate.shards.outcomes import taken_by

AT_ONCE = Retry(attempts=3, base=0)
NO_RETRY = Retry(attempts=0)
WORDS = [f"w{number}" for number in range(60)]
QUERIES = [*WORDS[::20], "w1 w2", "w3 w30 w59", "nowhere"]
NAME = "note_idx"
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])

Answers = dict[str, list[tuple[int, float]]]


def texts(count: int, start: int = 0) -> pa.Table:
    """Rows with ids from `start`, and about eight words each; the same for the same arguments."""
    chance = random.Random(start * 1_000_003 + count)
    notes = [" ".join(chance.choices(WORDS, k=chance.randint(4, 12))) for _ in range(count)]
    return pa.table({"id": range(start, start + count), "note": notes}, schema=SCHEMA)


def make_base(path: Path, fragments: int = 4, rows: int = 40) -> str:
    """A dataset of so many fragments with so many rows each."""
    uri = str(path / f"base-{uuid.uuid4().hex[:8]}")
    lance.write_dataset(texts(fragments * rows), uri, max_rows_per_file=rows)
    return uri


def append(uri: str, count: int, start: int, rows: int = 1_000_000) -> None:
    """More rows, in fragments of their own."""
    lance.write_dataset(texts(count, start), uri, mode="append", max_rows_per_file=rows)


def fragments_of(uri: str) -> list[int]:
    return [fragment.fragment_id for fragment in lance.dataset(uri).get_fragments()]


def answers(uri: str, queries: Iterable[str] = QUERIES) -> Answers:
    """What native pylance finds: id and score of every hit."""
    dataset = lance.dataset(uri)
    found: Answers = {}
    for query in queries:
        hits = dataset.scanner(columns=["id", "_score"], full_text_query=query, limit=100_000).to_table()
        scores = [round(score, 4) for score in hits.column("_score").to_pylist()]
        found[query] = sorted(zip(hits.column("id").to_pylist(), scores, strict=True))
    return found


def reference(uri: str, path: Path, **parameters: Any) -> Answers:
    """The answers over the same rows with one index, built by native in one process."""
    rows = lance.dataset(uri).to_table(columns=["id", "note"])
    other = str(path / f"reference-{uuid.uuid4().hex[:8]}")
    lance.write_dataset(rows, other).create_scalar_index("note", "INVERTED", **parameters)
    found = answers(other)
    shutil.rmtree(other)
    return found


def job(uri: str, fragments: Sequence[int], store: ObjectStore | None = None, **parameters: Any) -> BuildJob:
    """The job that indexes these fragments of the latest version."""
    look = look_index(store or open_store(uri), "note", NAME)
    rows = sum(look.fragments[fragment].rows for fragment in fragments)
    return BuildJob(store or open_store(uri), "note", NAME, look.version, tuple(fragments), rows, parameters)


def stage(uri: str, groups: Iterable[Sequence[int]], **parameters: Any) -> tuple[uuid.UUID, Built]:
    """Let one builder per group stage into one folder, as several workers do. The expected manifest of all."""
    index_id = uuid.uuid4()
    return index_id, together(build(folder(uri, index_id), job(uri, group, **parameters)) for group in groups)


def folder(uri: str, index_id: uuid.UUID, store: ObjectStore | None = None, retry: Retry = AT_ONCE) -> IndexFolder:
    return IndexFolder((store or open_store(uri)).retrying(retry), index_id)


def path_of(uri: str, index_id: uuid.UUID) -> Path:
    return Path(uri) / "_indices" / str(index_id)


def files_in(path: Path) -> dict[str, int]:
    """Every file below, with its size."""
    return {str(one.relative_to(path)): one.stat().st_size for one in path.rglob("*") if one.is_file()}


def makers_of_orphans(uri: str, used: Iterable[object]) -> set[str | None]:
    """Who has won the outcomes of the segments that have files, without those that are used."""
    folders = {path.name for path in (Path(uri) / "_indices").iterdir() if files_in(path)}
    return {taken_by(open_store(uri), index_slots.outcome(name)) for name in folders - set(map(str, used))}


def contents(path: Path) -> dict[str, bytes]:
    """Every file below, with its bytes."""
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def coverage(uri: str) -> list[int]:
    """The living fragments that the index covers, one for each segment that does."""
    living = set(fragments_of(uri))
    found = []
    for index in lance.dataset(uri).describe_indices():
        if index.name == NAME:
            found += [fragment for segment in index.segments for fragment in segment.fragment_ids]
    return sorted(fragment for fragment in found if fragment in living)


def committed_files(uri: str) -> dict[str, list[str]]:
    """Of the last version that changed indexes: the files it lists, by index."""
    dataset = lance.dataset(uri)
    operation: Any = dataset.read_transaction(dataset.version).operation  # type: ignore[union-attr]
    return {index.uuid: sorted(file.path for file in index.files) for index in operation.new_indices}


@dataclass(frozen=True)
class Staged:
    """A base whose four fragments were staged by four builders into one folder, and what a search must answer."""

    uri: str
    index_id: uuid.UUID
    built: Built
    answers: Answers

    @property
    def path(self) -> Path:
        return path_of(self.uri, self.index_id)

    def finalized(self) -> Segment:
        return finalize(folder(self.uri, self.index_id), self.built)

    def commit(self, segment: Segment) -> None:
        """Without any of our guards."""
        version = lance.dataset(self.uri).version
        assert commit_segments(open_store(self.uri), NAME, [native_segment(segment)], [], version)

    def is_whole(self, segment: Segment) -> None:
        """Dense parts of the staged sizes, a marker that describes them, and nothing else."""
        assert segment.files == self.built.final()
        assert files_in(self.path) == {**segment.files, MARKER: segment.marker_size}
        assert read_segment(folder(self.uri, self.index_id)) == segment

    def serves(self, segment: Segment) -> None:
        """The closing checks: it is whole, and native finds every row."""
        self.is_whole(segment)
        self.commit(segment)
        assert answers(self.uri) == self.answers
