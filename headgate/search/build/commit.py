"""Commits finished segments to the base's next version.

Promises:
1. Committing the same segments again makes no new version.
2. No fragment is indexed twice, and a commit never removes a fragment's index. Segments that no longer fit the base,
   because it was compacted or another build was faster, are left out and returned.
3. Segments with different parameters are never in one index: native would then fail every query.
4. After a crash or an unknown outcome, the same call finds out what was committed.
5. On local disk the version with the segments is synced when the call returns; their files were synced before it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from headgate import clock
from headgate.connectors.lance import slots as index_slots
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.lance.index import IndexLook, NativeSegment, commit_segments
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.deletion import delete
from headgate.errors import DataLoss, HeadgateError, InvalidInput, StoreError, Transient
from headgate.search.build.kind import Kind
from headgate.search.build.plan import Decision, Round, decide, uncovered
from headgate.search.build.text import TEXT
from headgate.search.finalize.marker import is_whole
from headgate.search.finalize.segment import IndexFolder, Segment
from headgate.shards.outcomes import taken_by, wins
from headgate.steps import step

COMMIT_STEPS = ("looked", "decided", "committed")
"""The named steps of `commit`, in each try."""

TRIES = 10
"""A try fails if another process changed the index or rewrote its fragments first."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The state of the index after a commit."""

    version: int
    landed: tuple[uuid.UUID, ...]
    stale: tuple[uuid.UUID, ...]
    uncovered: frozenset[int]
    """Fragments without an index."""


def commit(
    store: ObjectStore,
    column: str,
    planned: IndexLook,
    built: Sequence[Segment],
    done: Round,
    kind: Kind = TEXT,
) -> Committed:
    """Commit the segments of a round that was planned from `planned`.

    1. read the index as it is now; select the segments that are not in it yet and still fit. If there are none, return
       without a new version.
    2. compare the parameters of the segments, also with a segment that stays; check that every file is there.
    3. take the outcome slot of each; garbage collection takes it before it deletes a segment (R20). If one is lost,
       give back the others and raise Transient. Slots of segments that no longer fit are given back too.
    4. commit by compare-and-set on the version that was read; after a conflict or without a response repeat from 1.
    5. read the index again, and return what is covered.

    Raises InvalidInput for different parameters, DataLoss for a missing file, Transient if other processes, or garbage
    collection, were faster: the new segments are then garbage.
    """
    failure: StoreError | None = None
    unknown = False
    for delay in (*replace(store.retry, attempts=TRIES).delays(), None):
        now = kind.look(store, column, planned.name)
        step("looked")
        decision = decide(planned, now, built, done.removed)
        if not decision.added or (done.whole and decision.stale):
            stale = (*decision.stale, *(one.index_id for one in decision.added))
            if not unknown:
                _give_back(store, stale)
            return Committed(now.version, decision.landed, stale, uncovered(now))
        if delay is None:
            break
        _check(store, now, decision, kind)
        _win(store, [one.index_id for one in decision.added])
        step("decided")
        try:
            fresh = [native_segment(one) for one in decision.added]
            failure = None
            if commit_segments(store, now.name, fresh, decision.removed, now.version):
                sync_base(store)
            else:
                clock.sleep(delay)
        except StoreError as error:
            failure, unknown = error, True
            clock.sleep(delay)
        step("committed")
    raise failure or Transient(
        f"Other processes changed index {now.name!r} during each of {TRIES} tries.", table=store.uri
    )


def _check(store: ObjectStore, now: IndexLook, decision: Decision, kind: Kind) -> None:
    first, *rest = decision.added
    for one in rest:
        if what := kind.differ(first, one):
            raise InvalidInput(
                f"Segments of index {now.name!r} were built with different {what}.",
                table=store.uri,
                indexes=f"{first.index_id}, {one.index_id}",
                advice="build them again with the same parameters; nothing was committed",
            )
    staying = next((one for one in now.segments if one.index_id not in decision.removed and not one.elsewhere), None)
    if staying is not None and (what := kind.differ_beside(store, now, staying, first)):
        raise InvalidInput(
            f"Index {now.name!r} has a different {what}.",
            table=store.uri,
            index=str(staying.index_id),
            advice="leave the parameters out, or rebuild the index with rebuild=True (--rebuild); nothing was "
            "committed",
        )
    for one in decision.added:
        if not is_whole(IndexFolder(store, one.index_id), one):
            raise DataLoss(
                "A segment is missing or changed since it was finalized.",
                table=store.uri,
                index=str(one.index_id),
                advice="run the build again; nothing was committed",
            )


def _win(store: ObjectStore, segments: Collection[uuid.UUID]) -> None:
    lost = [one for one in segments if not wins(store, index_slots.outcome(one), "maker")]
    if lost:
        _give_back(store, set(segments) - set(lost))
        raise Transient(
            "Garbage collection deleted a segment that was not committed within the minimum age.",
            table=store.uri,
            index=str(lost[0]),
            advice="run the build again; nothing was committed",
        )


def _give_back(store: ObjectStore, segments: Collection[uuid.UUID]) -> None:
    """Let garbage collection delete segments that this process will never commit. Best effort: otherwise they stay."""
    for one in segments:
        with suppress(HeadgateError):
            if taken_by(store, slot := index_slots.outcome(one)) == "maker":
                delete(store, slot, "outcome")


def native_segment(segment: Segment) -> NativeSegment:
    """The segment in the form that a commit takes."""
    facts = segment.facts
    return NativeSegment(
        index_id=segment.index_id,
        fragments=segment.fragments,
        files=segment.listed,
        fields=facts.fields,
        dataset_version=facts.dataset_version,
        index_version=facts.index_version,
        details=facts.details,
    )
