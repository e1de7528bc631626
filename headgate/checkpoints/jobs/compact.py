"""Compaction: merge SSTables into the base, and remove them from their manifests.

Promises:
1. Every reader sees the same rows before, during and after it: the commit that merges SSTables also records them.
2. After a crash, running it again gives the same table. Nothing is merged twice, and nothing is dropped before it is
   merged.
3. Memory is bounded by the SSTables that one round takes, and what Lance reads ahead of the base's key columns (some
   bytes a row); without a key rows only stream through.
4. What others do to the base meanwhile (append, delete, update, index, Lance's own compaction, other columns) stands: a
   conflict is tried again on the base as it is then.

A compaction holds a claim on every shard (R16). If it was fenced meanwhile, it takes nothing from its successor: with a
key the mark on the base decides, without one the note of `connectors.lance.base.append`; manifests by their claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from headgate import clock, parallel
from headgate.checkpoints.jobs.columns import schema_of
from headgate.checkpoints.jobs.policy import CompactLimits, chosen, size_of
from headgate.connectors.lance import datasets
from headgate.connectors.lance.base import append as append_once
from headgate.connectors.lance.base.append import BaseMoved
from headgate.connectors.lance.base.files import sync_data_files
from headgate.connectors.lance.base.marks import compacted_marks
from headgate.connectors.lance.base.merge import delete_keys, merge_rows
from headgate.connectors.lance.base.notes import note_started
from headgate.connectors.lance.base.synced import sync_base
from headgate.errors import DataLoss, HeadgateError, NotFound, Transient
from headgate.retry import Retry
from headgate.shards.manifest.decisions import uncompacted
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.shards.rows.dedup import living, newest_rows
from headgate.shards.rows.schema import TOMBSTONE
from headgate.shards.rows.sstable import open_sstable
from headgate.shards.shard import Claim, Shard, TableHome
from headgate.steps import step

TRIES = 8
"""A try fails if another process changed the base; more tries would not help."""

COMPACT_STEPS = ("plan", "base", "begin", "deletes", "merge", "rows", "intend", "append", "finish", "sync", "drop")
"""Where a compaction pauses. `begin` to `merge` are for tables with a key, `rows` to `finish` for tables without."""

_log = structlog.get_logger("headgate.checkpoints")


@dataclass(frozen=True)
class CompactPart:
    """One shard's part of a round: its oldest SSTables that the base has not taken in."""

    name: str
    claim: Claim
    above: int
    """The base's mark for the shard at planning."""
    sstables: tuple[SsTable, ...]

    @property
    def upto(self) -> int:
        """The shard's mark after the round."""
        return self.sstables[-1].generation


@dataclass(frozen=True)
class CompactJob:
    """One round: what one commit takes into the base. Picklable."""

    parts: tuple[CompactPart, ...]

    @property
    def home(self) -> TableHome:
        return self.parts[0].claim.shard.home

    @property
    def shards(self) -> frozenset[UUID]:
        """The shards of the round."""
        return frozenset(part.claim.shard.id for part in self.parts)

    @property
    def sstables(self) -> int:
        """Number of SSTables."""
        return sum(len(part.sstables) for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of their rows in memory."""
        return sum(size_of(sstable) for part in self.parts for sstable in part.sstables)


@dataclass(frozen=True)
class CompactOutput:
    """Result of `take_in`. With a key the rows are in the base; without a key, in files that nothing names yet."""

    rows: int
    deleted: int = 0
    fragments: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompactRound:
    """A finished round."""

    sstables: int
    nbytes: int
    rows: int
    deleted: int
    """Rows of the base that deletes removed."""
    manifests: Mapping[str, Manifest] = field(default_factory=dict, repr=False)
    """Current manifests by shard name."""


RunCompaction: TypeAlias = Callable[[CompactJob], CompactOutput]
"""Runs `take_in`: in this process, or on an executor."""


def compact_round(
    claims: Mapping[str, Claim],
    limits: CompactLimits,
    run: RunCompaction | None = None,
) -> CompactRound | None:
    """Take the oldest SSTables of the claimed shards into the base, up to a size. None if there are none.

    1. plan: manifests, then the base. Drop what the base has taken in already, from a compaction that died before it
       did.
    2. take_in: with a key, deletes and rows are merged, and marked in the same commit; without one, rows are written.
    3. commit: without a key the rows are appended once; every file of the base is synced, whoever wrote it (R21); the
       manifests drop the SSTables.

    Raises Fenced if another holder has claimed a shard, DataLoss if the base has lost a file of rows, Transient if
    others keep changing the base.
    """
    retry = next((claim.shard.home.retry for claim in claims.values()), Retry())
    delays = [*retry.delays(), *([0.0] * TRIES)][:TRIES]
    for delay in delays:
        step("plan")
        job = plan(claims, limits)
        if job is None:
            return None
        try:
            taken = (run or (lambda job: take_in(job)))(job)
            manifests = commit(job, taken)
        except BaseMoved:
            clock.sleep(delay)
            continue
        return CompactRound(job.sstables, job.nbytes, taken.rows, taken.deleted, manifests)
    raise Transient(
        f"Other writers changed the base during each of {TRIES} tries.",
        table=next(iter(claims.values())).shard.home.uri,
        advice="compact again when nobody else changes the base; nothing was lost",
    )


# -- planning --------------------------------------------------------------------------


def plan(claims: Mapping[str, Claim], limits: CompactLimits) -> CompactJob | None:
    """Plan one round. Drops from the manifests what the base has taken in already. Raises Fenced."""
    if not claims:
        return None
    manifests = _held(claims)
    home = next(iter(claims.values())).shard.home
    if not any(manifest.sstables for manifest in manifests.values()):
        return None
    step("base")
    ids = {claim.shard.id for claim in claims.values()}
    marks = compacted_marks(home.store, datasets.open_dataset(home.store), ids)
    known = {name: marks.get(claim.shard.id, 0) for name, claim in claims.items()}
    done = {
        name: claims[name]
        for name, manifest in manifests.items()
        if any(sstable.generation <= known[name] for sstable in manifest.sstables)
    }
    if done:
        if not home.schema.primary_key:
            append_once.finish(home.store, {claim.shard.id: known[name] for name, claim in done.items()})
        step("sync")
        sync_base(home.store)
        step("drop")
        manifests |= _drop(done, marks)
    fresh = {claims[name].shard.id: manifest.sstables for name, manifest in manifests.items() if manifest.sstables}
    taken = chosen(fresh, limits)
    parts = (
        CompactPart(name, claim, known[name], taken[claim.shard.id])
        for name, claim in sorted(claims.items())
        if claim.shard.id in taken
    )
    job = CompactJob(tuple(parts))
    return job if job.parts else None


def _held(claims: Mapping[str, Claim]) -> dict[str, Manifest]:
    def held(name: str) -> Manifest:
        claim = claims[name]
        return claim.shard.manifests.held(claim.epoch, claim.claim_id)

    return dict(zip(claims, parallel.each("claim", held, claims), strict=True))


# -- into the base ---------------------------------------------------------------------


def take_in(job: CompactJob) -> CompactOutput:
    """The work of one round, in any process; it may run twice, in two processes. Raises BaseMoved, Fenced, Transient.

    With a key:
    1. open the base. If the shards are marked already, another run of this job took them in: nothing to do.
    2. check that every claim still holds. A successor compacts only after this version, so deletes from it never hit
       rows of the successor.
    3. note that deletes begin: whoever reads the base from here on must know the SSTables that hold them (R11).
    4. delete the keys whose newest row is a tombstone; the SSTables still hide them.
    5. merge the other rows and mark, in one commit. From here the SSTables no longer count.
    Any conflict with others: from 1 again.

    Without a key: write the rows into files of the base that nothing names.
    """
    if not job.home.schema.primary_key:
        return _written(job)
    for _ in range(TRIES):
        dataset = datasets.open_dataset(job.home.store)
        if _is_in(job, compacted_marks(job.home.store, dataset, job.shards)):
            return CompactOutput(0)
        claims = {part.name: part.claim for part in job.parts}
        _held(claims)
        try:
            return _merged(job, _as_of(job.home, dataset), dataset)
        except Transient as error:
            _log.info("the merge into the base is retried", table=job.home.uri, why=error.what)
            continue
        except DataLoss:
            # A successor may have compacted and collected what is missing.
            _held(claims)
            raise
    raise BaseMoved(table=job.home.uri)


def _merged(job: CompactJob, home: TableHome, dataset: Any) -> CompactOutput:
    key, names = home.schema.primary_key, home.schema.storage.names
    stored = [batch for part in job.parts for batch in _stored(home, part, names)]
    rows = newest_rows(pa.Table.from_batches(stored, schema=home.schema.storage), key)
    del stored
    upto = {part.claim.shard.id: part.upto for part in job.parts}
    dead = rows.filter(pc.field(TOMBSTONE)).select(key)
    deleted = 0
    if dead.num_rows:
        step("begin")
        note_started(home.store, upto)
        step("deletes")
        deleted = delete_keys(dataset, key, dead)
    if schema_of(home, dataset) != home.schema:
        raise BaseMoved(table=home.uri)
    step("merge")
    alive = living(rows).cast(dataset.schema)
    merged = merge_rows(dataset, key, alive, upto)
    if merged.inserted + merged.updated != alive.num_rows:
        _log.warning(
            "the base has duplicate keys; they were appended without headgate",
            table=home.uri,
            rows=merged.inserted + merged.updated - alive.num_rows,
        )
    return CompactOutput(alive.num_rows, deleted)


def _written(job: CompactJob) -> CompactOutput:
    dataset = datasets.open_dataset(job.home.store)
    home = _as_of(job.home, dataset)
    step("rows")
    count = 0

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for part in job.parts:
            for batch in _stored(home, part, dataset.schema.names):
                count += batch.num_rows
                yield from pa.Table.from_batches([batch]).cast(dataset.schema).to_batches()

    fragments = append_once.write_fragments(dataset, home.store, rows())
    sync_data_files(home.store, append_once.data_files(fragments))
    return CompactOutput(count, fragments=fragments)


def _stored(home: TableHome, part: CompactPart, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Rows of a part as they were put, oldest SSTable first, in the current columns."""
    shard, columns = Shard(home, part.claim.shard.id), list(names)
    for sstable in part.sstables:
        try:
            yield from open_sstable(shard, sstable).batches(columns, None)
        except HeadgateError as error:
            raise error.with_context(**shard.where(), sstable=sstable.path)  # noqa: B904 - the same error, told where


def _is_in(job: CompactJob, marks: Mapping[UUID, int]) -> bool:
    """True if the base has all of it. Raises BaseMoved if the base has something else than planned."""
    found = {part.name: marks.get(part.claim.shard.id, 0) for part in job.parts}
    if all(found[part.name] >= part.upto for part in job.parts):
        return True
    if any(found[part.name] != part.above for part in job.parts):
        raise BaseMoved(table=job.home.uri)
    return False


def _as_of(home: TableHome, dataset: Any) -> TableHome:
    """The home with the base's columns: an SSTable may have been written with more columns than this holder knows."""
    return replace(home, schema=schema_of(home, dataset))


# -- committing ------------------------------------------------------------------------


def commit(
    job: CompactJob,
    taken: CompactOutput,
) -> dict[str, Manifest]:
    """Remove from the manifests what was taken in. Returns the current manifests.

    Without a key the rows are appended first: noted, looked for, appended, noted as done, see
    `connectors.lance.base.append`. From the note on, headgate removes no version of the base, so that Lance's own
    clean-up does not run over files that nothing names yet; what it took before, the look finds. Idempotent.

    Raises BaseMoved, Fenced, Poisoned, Transient.
    """
    home = job.home
    upto = {part.claim.shard.id: part.upto for part in job.parts}
    if not home.schema.primary_key:
        above = {part.claim.shard.id: part.above for part in job.parts}
        step("intend")
        own = append_once.intend(home.store, above, upto, taken.fragments)
        step("append")
        _check_there(home, taken.fragments)
        append_once.append(home.store, own, upto, taken.fragments)
        step("finish")
        append_once.finish(home.store, upto)
    marks = compacted_marks(home.store, datasets.open_dataset(home.store), job.shards)
    if not _is_in(job, marks):
        raise BaseMoved("The Spark job reported merged SSTables that the base does not have.", table=home.uri)
    step("sync")
    sync_base(home.store)
    step("drop")
    return _drop({part.name: part.claim for part in job.parts}, marks)


def _check_there(home: TableHome, fragments: Sequence[str]) -> None:
    for name in append_once.data_files(fragments):
        try:
            home.store.head(f"data/{name}")
        except NotFound as error:
            what = "Lance's cleanup deleted the files of a compaction that took too long."
            raise Transient(what, table=home.uri, advice="compact again; nothing was changed") from error


class _Nothing(Exception):
    """The manifest names nothing that the base has taken in."""


def _drop(claims: Mapping[str, Claim], marks: Mapping[UUID, int]) -> dict[str, Manifest]:
    """Remove from the manifests what the base has taken in. Call it after the base was synced."""

    def drop(name: str) -> Manifest:
        claim = claims[name]
        manifests = claim.shard.manifests

        def dropped(stored: Manifest) -> Manifest:
            left = uncompacted(stored.sstables, stored.generation, marks.get(claim.shard.id, 0))
            assert left is not None, "only SSTables that a manifest names are merged"
            if left == stored.sstables:
                raise _Nothing
            return replace(stored, sstables=left)

        try:
            return manifests.commit_update(claim.claim_id, claim.epoch, dropped)
        except _Nothing:
            return manifests.held(claim.epoch, claim.claim_id)

    return dict(zip(claims, parallel.each("claim", drop, claims), strict=True))
