"""Garbage collection: delete what no reader, no checkpoint, no fence and no recovery can still need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from headgate import clock
from headgate.checkpoints.gc.candidates import (
    Candidates,
    Holders,
    Live,
    candidates,
    holders,
    live_manifests,
    store_time,
)
from headgate.checkpoints.gc.report import Collection, Garbage
from headgate.checkpoints.gc.shards import Base, shard_garbage
from headgate.checkpoints.gc.sweep import archived, delete_found, heal_hints, relied_on, won
from headgate.checkpoints.gc.table import (
    checkpoint_garbage,
    consumer_garbage,
    index_garbage,
    log_garbage,
    temporary_garbage,
)
from headgate.errors import HeadgateError
from headgate.parallel import Pool
from headgate.shards.shard import TableHome
from headgate.steps import step

MIN_AGE = timedelta(hours=1)
"""How long a reader without a pin may read its instant."""

COLLECT_STEPS = ("now", "list", "manifests", "pins", "choose", "sync", "archive", "delete")
"""Where `collect` pauses, in order; the last three only with `apply`."""


def collect(
    home: TableHome,
    shard_ids: Iterable[UUID],
    *,
    min_age: timedelta = MIN_AGE,
    apply: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Collection:
    """Find garbage, and with `apply` delete it:

    1. read the store's clock (without `apply`, this machine's).
    2. list the candidates: WAL entries, SSTables, manifests, records of the logs, tags, index folders, strays.
    3. after that, read the manifests: what they do not name, and can never name again, may go (R20).
    4. after that, read what holds it: checkpoints, consumers of the logs (R15). A checkpoint that is put later reads
       the manifests again, and does not count if what it names differs from the manifests of 3. A tag is put after its
       record: a tag that was listed in 2 and has no record now was abandoned or dropped.
    5. choose by `rules`. Of WAL entries and commit records the header is read: barriers and open records stay (R5).
    6. sync what makes it garbage: the base, manifests and SSTables (R21).
    7. archive the commit records that go, where their stream has an archive.
    8. delete; index segments after a race with their maker, manifests oldest first, after native's hint was written
       (R7). Expired checkpoints go before what they held.

    An unreadable shard or log is kept completely and reported in `kept`, as are records that were not archived; an
    unreadable checkpoint or consumer pin raises Corrupt, because it may hold anything.
    """
    step("now")
    now = store_time(home) if apply else clock.now()
    before = now - min_age
    step("list")
    listed = candidates(home, shard_ids)
    step("manifests")
    live = {shard.id: live_manifests(shard, before) for shard, _ in listed.shards}
    step("pins")
    held = holders(home, now)
    step("choose")
    kept: list[str] = []
    with Pool("gc") as pool:
        found = list(_chosen(home, listed, live, held, before, pool, kept))
        if apply:
            step("sync")
            found = relied_on(home, found, kept)
            step("archive")
            found = archived(home, listed.logs, found, kept)
            step("delete")
            found = won(found)
            delete_found(home, found, pool, progress)
            heal_hints(listed.shards)
    return Collection(tuple(found), apply, tuple(kept))


def _chosen(
    home: TableHome,
    listed: Candidates,
    live: Mapping[UUID, Live],
    held: Holders,
    before: datetime,
    pool: Pool,
    kept: list[str],
) -> Iterator[Garbage]:
    """The objects that may go. What cannot be judged stays, and `kept` says why."""
    base = Base(home)
    parts = [
        (f"shard {shard.id}", shard_garbage(shard, objects, live[shard.id], held, before, pool, base, kept))
        for shard, objects in listed.shards
    ]
    parts += [
        (f"stream {stream!r}", log_garbage(home, stream, objects, held, before, pool))
        for stream, objects in listed.logs
    ]
    parts += [("indexes of the base", index_garbage(home, listed, before))]
    for what, part in parts:
        try:
            yield from list(part)
        except HeadgateError as error:
            kept.append(f"{what}: {error}")
    yield from checkpoint_garbage(home, held, listed.tags, before)
    yield from consumer_garbage(home, held)
    yield from temporary_garbage(home, before)
