"""One object of a quiet table is lost: fsck tells something exactly where the codec misses something."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headgate.connectors.lance.health import look_over
from headgate.shards import names
from tests.simulation.operators import findings
from tests.simulation.scheduler import Event, Violation

if TYPE_CHECKING:
    from tests.simulation.world import Place, World


def lose(world: World, here: Place, chance: random.Random) -> None:
    """Deletes an object that rows may hang on. Raises Violation where fsck and the codec do not agree."""
    there = sorted(_candidates(here))
    if not there or world.renewed:
        return
    key, before = chance.choice(there), Counter(here.table.visible())
    world.scheduler.history.append(Event("closing", f"* {key} is lost"))
    world.objects.discard(key)
    here.table.changed(key, None)
    try:
        missing = Counter(here.table.visible()) != before or here.table.has_log_hole()
    except LookupError:
        missing = True
    known = here.table.leftovers()
    told = [one.code for one in findings(world, here) if one.code not in known]
    if (fault := look_over(here.home.store).fault) is not None:
        told.append(fault)
    if bool(told) != missing:
        raise Violation(
            f"fsck tells {told} where {key} is lost, and the codec {'misses' if missing else 'has all'} rows"
        )


def _candidates(here: Place) -> Iterator[str]:
    """Entries that count, but for the last one of a WAL; SSTables that are named, but for those that the base took in
    before their compaction died; files of the base; records of batches, but for the last one of a log unless something
    names it: what nothing follows and nothing names leaves no trace (an entry of the batch looks like a dead one).
    """
    table, listed, base = here.table, here.table.listed(), set(here.table.base_rows())
    for shard_id, shard in table.shards.items():
        if (latest := shard.manifest) is None:
            continue
        for position, entry in shard.entries.items():
            counts = entry.attempt is None or position in listed.get(shard_id, {})
            if latest.replay_after < position < max(shard.entries) and counts and entry.ids:
                yield names.wal_key(shard_id, position)
        for path in latest.sstables:
            if base.issuperset(table.sstables.get(f"{shard_id}/{path}", ())):
                continue
            yield f"{names.shard_folder(shard_id)}/{path}/_versions/{2**64 - 2:020d}.manifest"
    for fragment in table.versions[max(table.versions)]["fragments"]:
        yield f"data/{fragment['files'][0]['path']}"
    for stream, log in table.logs.items():
        newest, end = max(log.folds, default=0), max((*log.records, 0))
        for sequence, record in log.records.items():
            leaves_a_trace = sequence < end or sequence <= table.named(stream)
            if sequence > newest and leaves_a_trace and record["kind"] == "batch" and _has_rows(record):
                yield f"_headgate/{table.table_id}/streams/{stream}/log/{sequence:020d}.json"


def _has_rows(batch: Mapping[str, Any]) -> bool:
    return any(part["rows"] for part in batch["shards"].values())
