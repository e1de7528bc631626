"""Recovery of a stream: compares Spark's checkpoint with the table, and rebuilds it if it is lost or damaged (R19).

The commit log decides what is in the table. So a lost checkpoint loses nothing; Spark plans an uncommitted batch again.
"""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from headgate.checkpoints.fsck.check import look_over
from headgate.checkpoints.fsck.findings import Finding
from headgate.checkpoints.log.commit_log import CommitLog, read_head
from headgate.checkpoints.log.decisions import late_beginning
from headgate.checkpoints.log.names import BATCH_STREAM, list_streams, no_stream
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.compare import SparkLook, Standing, look_at_spark, standing
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.rebuild import Layout, begun_files, rebuilt_files, write_files
from headgate.checkpoints.spark.rewind import stream_head
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.files import sync_path
from headgate.errors import AlreadyExists, DataLoss, InvalidInput
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.listing import list_wal
from headgate.steps import step

_LOOKS = 10
"""A query that runs beside that many looks, with something new at each, is not damaged."""


@dataclass(frozen=True)
class ShardStand:
    """One shard of the stream: its WAL, and what the log lists."""

    name: str
    shard_id: UUID
    epoch: int | None
    """None, like replay_after, if its manifest is unreadable."""
    replay_after: int | None
    listed: int | None
    """The last position that a commit record lists."""
    tip: int
    """The first free position."""


@dataclass(frozen=True)
class Diagnosis:
    """The state of a stream."""

    head: Head
    spark: SparkLook
    standing: Standing
    shards: tuple[ShardStand, ...]
    findings: tuple[Finding, ...]
    """Problems of the stream's log and shards, as far as LIST shows them."""


@dataclass(frozen=True)
class Rebuilt:
    """A rebuilt checkpoint directory."""

    query_id: str
    head: Head
    """The stream's head; the open record is this recovery's own."""
    moved_to: str | None
    """New place of the old directory; None if there was none."""


@dataclass(frozen=True)
class Mended:
    """A checkpoint that a start has rebuilt."""

    why: str
    """What was wrong with it, as a sentence."""
    rebuilt: Rebuilt


def diagnose(home: TableHome, stream: str, checkpoint: SparkCheckpoint) -> Diagnosis:
    """Read the log, the directory and the shards. Writes nothing and fences nobody.

    Raises NotFound if the stream never existed, DataLoss or Corrupt if the log itself is unreadable.
    """
    head, spark = _settled(home, stream, checkpoint)
    if not spark.planned:
        # A re-created table has no stream yet; a checkpoint beside it is reported all the same.
        stream_head(home, stream)
    found = standing(head, spark)
    if (late := late_beginning(CommitLog(home.records, stream, home.uri).beginning(), head)) is not None:
        found = replace(found, state="foreign", why=f"{late} {found.why}")
    claims = {} if head.opened is None else head.opened.shards
    findings = look_over(home, [claim.shard_id for claim in claims.values()])
    shards = tuple(_stand(home, head, name, claim.shard_id) for name, claim in sorted(claims.items()))
    return Diagnosis(head, spark, found, shards, tuple(findings))


def rebuild(
    home: TableHome,
    stream: str,
    checkpoint: SparkCheckpoint,
    target: ObjectStore,
    *,
    sources: Sequence[Iterable[str]] = (),
    move: Callable[[str, str], None] | None = None,
) -> Rebuilt:
    """Rebuild the Spark checkpoint. THIS WRITES, AND IT FENCES A DRIVER THAT STILL RUNS THE STREAM.

    1. look: refuse a directory that needs no rebuild, or that cannot be rebuilt; nothing was written yet.
    2. take over the stream, under a new query id: claims, barriers, open record. From here no other driver commits.
    3. read the last commit, as that open record fixed it.
    4. move what is in the directory aside, whole; a directory that cannot be moved is refused in 1.
    5. write: metadata, sources, offsets, and `commits/N` last.

    A crash anywhere leaves a table that streams on and a directory that is refused, harmless, or whole; calling again
    completes it. `target` is the directory as a store; `sources` are the topics of each Kafka source of the query, if
    it has several. Raises InvalidInput, Fenced, DataLoss, StoreError.
    """
    step("spark look")
    head, spark = _settled(home, stream, checkpoint)
    _check_needed(home, head, spark)
    query_id = str(uuid.uuid4())
    _files(head, query_id, spark, sources)  # refuses what cannot be rebuilt, before anything is fenced
    aside = None if not spark.is_there else move or _mover(checkpoint)
    step("take over")
    head = StreamDriver.open(home, stream, query_id, ()).head
    files = _files(head, query_id, spark, sources)
    moved_to = None
    if aside is not None:
        step("aside")
        moved_to = f"{checkpoint.location.rstrip('/')}.replaced-at-{head.sequence}"
        aside(checkpoint.location, moved_to)
    write_files(target, files)
    step("rebuilt")
    return Rebuilt(query_id, head, moved_to)


def check_rebuildable(
    home: TableHome, head: Head, checkpoint: SparkCheckpoint, *, sources: Sequence[Iterable[str]] = ()
) -> bool:
    """True if `rebuild` would have to create the directory anew for a stream with this head. Writes nothing.

    Raises InvalidInput if it could not.
    """
    spark = look_at_spark(checkpoint)
    if not standing(head, spark).needs_rebuild:
        return False
    _check_needed(home, head, spark)
    _files(head, str(uuid.uuid4()), spark, sources)
    if spark.is_there:
        _mover(checkpoint)
    return True


def check_startable(home: TableHome, stream: str, checkpoint: SparkCheckpoint) -> None:
    """Check that Spark can start from the directory and the stream can continue. Reads only.

    Raises InvalidInput if it is damaged, gone, or older than the table. The sink reports other problems at the first
    batch: it knows more.
    """
    head, spark = _settled(home, stream, checkpoint)
    found = standing(head, spark)
    if found.is_damaged or found.is_mendable:
        if not spark.is_stateful:
            command = ["headgate", "recover", home.uri, "--spark-checkpoint", spark.uri, "--stream", stream, "--apply"]
            advice = f"rebuild it: {shlex.join(command)}"
            raise InvalidInput(found.why, table=home.uri, stream=stream, checkpoint=spark.uri, advice=advice)
        _check_needed(home, head, spark)


def mend(home: TableHome, stream: str, checkpoint: SparkCheckpoint, target: Callable[[], ObjectStore]) -> Mended | None:
    """Before a query is started: `rebuild` a directory that a crash or a power cut has left damaged, old or empty. THIS
    WRITES AND FENCES ONLY WHERE IT REBUILDS. None: Spark can start from it.

    Spark never syncs its files, and the table's log is synced before Spark writes that it is done: so a power cut only
    loses files of Spark's, and the table is right. Other cases are left alone: a directory of another query, and one in
    which Spark finished what the table never got. Raises InvalidInput if such a directory is damaged, or if a damaged
    one cannot be rebuilt. `target` opens the directory as a store.
    """
    found = standing(*_settled(home, stream, checkpoint))
    if found.is_mendable:
        return Mended(found.why, rebuild(home, stream, checkpoint, target()))
    if found.is_damaged:
        raise InvalidInput(
            f"{found.why} It was not rebuilt automatically: its files belong to another stream, or are newer "
            "than the table.",
            table=home.uri,
            stream=stream,
            checkpoint=checkpoint.uri,
            advice="check table, stream and checkpoint; `headgate recover --apply` rebuilds it anyway",
        )
    return None


def choose_stream(home: TableHome, spark: SparkLook, given: str | None) -> str:
    """The stream to use: the given one, the only one, or the one whose query the checkpoint belongs to."""
    if given == BATCH_STREAM:
        raise InvalidInput("Batch writes have no Spark checkpoint: there is nothing to recover.", table=home.uri)
    if given is not None:
        return given
    streams = [name for name in list_streams(home.records) if name != BATCH_STREAM]
    if len(streams) == 1:
        return streams[0]
    heads = [read_head(home, stream) for stream in streams]
    queries = {head.stream: {one.query_id for one in (head.last, head.opened) if one is not None} for head in heads}
    own = [stream for stream, ids in queries.items() if spark.query_id in ids]
    if len(own) == 1:
        return own[0]
    if not streams:
        raise no_stream(None, (), home.uri)
    what = "The table has several streams, and the checkpoint does not say which one it belongs to."
    raise InvalidInput(what, table=home.uri, advice=f"name it with --stream: {', '.join(streams)}")


def _settled(home: TableHome, stream: str, checkpoint: SparkCheckpoint) -> tuple[Head, SparkLook]:
    """The log and the directory, read until they stay the same: a running query changes one after the other, and what
    is read in between would look like damage.
    """
    log = CommitLog(home.records, stream, home.uri)
    seen = None
    for _ in range(_LOOKS):
        head, spark = log.read().head, look_at_spark(checkpoint)
        if seen == (head.sequence, spark) or not standing(head, spark).needs_rebuild:
            break
        seen = head.sequence, spark
    return head, spark


def _check_needed(home: TableHome, head: Head, spark: SparkLook) -> None:
    found = standing(head, spark)
    where: dict[str, Any] = {"table": home.uri, "stream": head.stream, "checkpoint": spark.uri}
    if not found.needs_rebuild:
        raise InvalidInput(
            f"The Spark checkpoint needs no rebuild. {found.why}",
            **where,
            advice="start the query; nothing was written",
        )
    if spark.is_stateful:
        raise InvalidInput(
            "The query is stateful (it aggregates, joins or removes duplicates). Its state is not in the "
            "table, so its checkpoint cannot be rebuilt.",
            **where,
            advice="restore the directory from a backup; or start the query again with a new table; nothing was "
            "written",
        )


def _files(head: Head, query_id: str, spark: SparkLook, sources: Sequence[Iterable[str]]) -> list[tuple[str, bytes]]:
    if head.last is None and spark.is_there:
        # There is no batch yet, so nothing to continue: the query begins again where it began.
        return begun_files(query_id, spark.begun)
    return rebuilt_files(head, query_id, _layout(head, spark, sources))


def _layout(head: Head, spark: SparkLook, sources: Sequence[Iterable[str]]) -> Layout | None:
    """Which topics belong to which source: as the caller says, or as the directory still shows; None if there is one
    source.
    """
    if head.last is None:
        return None
    if sources:
        return Layout.given(sources, [part.source for part in head.last.opaque])
    return Layout.as_was(spark.layout, head.last)


def _mover(checkpoint: SparkCheckpoint) -> Callable[[str, str], None]:
    if checkpoint.local_path is None:
        raise InvalidInput(
            "The damaged Spark checkpoint is in an object store, where a directory cannot be moved atomically.",
            checkpoint=checkpoint.uri,
            advice="move it away yourself, or give an empty directory with --spark-checkpoint; nothing was written",
        )
    return _rename


def _rename(path: str, moved_to: str) -> None:
    if os.path.lexists(moved_to):
        raise AlreadyExists("The target for moving the old Spark checkpoint exists already.", path=moved_to)
    os.rename(path, moved_to)
    sync_path(os.path.dirname(os.path.abspath(path)))


def _stand(home: TableHome, head: Head, name: str, shard_id: UUID) -> ShardStand:
    shard = Shard(home, shard_id)
    try:
        manifest = shard.manifests.latest()
    except DataLoss:
        manifest = None
    return ShardStand(
        name=name,
        shard_id=shard_id,
        epoch=None if manifest is None else manifest.epoch,
        replay_after=None if manifest is None else manifest.replay_after,
        listed=head.listed.get(shard_id),
        tip=list_wal(shard).highest + 1,
    )
