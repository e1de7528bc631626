"""Replay of dead letters with a decoder that can read them: exactly once, as rows of their own stream.

A replay is a batch of the letters' stream, with its own commit record, which lists both the new rows and their letters
(see `replayed`). So a crash never replays a letter twice, a second run adds nothing, and a letter that is refused again
stays for a later replay. The record is not a batch of the query: Spark's next batch continues as before.

On a table with a key, a replayed row becomes the newest row of its key, even if newer records followed in the topic: if
keys of letters are in the table, the replay fails unless `overwrite` is given. It cannot see keys that were deleted
meanwhile.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoints.jobs.columns import current_schema, gained
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import DeadEntry, ReplayProgress, dead_entries
from headgate.checkpoints.log.names import check_stream
from headgate.checkpoints.log.records import Batch, OpaqueRange
from headgate.checkpoints.log.state import LogState
from headgate.checkpoints.offline.checkpoint import MAX_BYTES
from headgate.checkpoints.stream.batches import free_of_batches
from headgate.checkpoints.stream.checkpoint import stop_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import InvalidInput, Transient
from headgate.shards.config import WriterConfig
from headgate.shards.home.stores import Place
from headgate.steps import step
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.provenance import provenance_value
from headgate.streaming.write.answers import Parts, shard_parts
from headgate.streaming.write.checks import check_decoder
from headgate.streaming.write.rows import MadeRows, RowMaker
from headgate.streaming.write.task import Attempt, WritePlan
from headgate.table.table import Table, as_table

BATCH_BYTES = 64 << 20
"""Approximate bytes of letters per commit record."""

EXAMPLES = 5
"""Maximum examples of refused letters."""

REPLAY = "replay-"
"""Prefix of the query id of a replay's records."""

KEEP = 2
"""Automatic checkpoints of the stream that are kept."""


@dataclass(frozen=True)
class ReplayReport:
    """What a replay did, or would do."""

    stream: str
    applied: bool
    letters: int = 0
    """Letters that were waiting."""
    rows: int = 0
    """Rows and deletes made from them."""
    refused: int = 0
    """Letters that were refused again and stay."""
    present: int = 0
    """Keys of these rows that are in the table already."""
    batches: int = 0
    examples: tuple[Mapping[str, Any], ...] = ()
    """Examples of refused letters: topic, partition, offset and reason."""


@dataclass
class _LetterBatch:
    """Entries that are replayed by one record."""

    entries: list[DeadEntry] = field(default_factory=list)
    made: MadeRows = field(default_factory=lambda: MadeRows((), {}))

    @property
    def letters(self) -> int:
        return sum(int(one.waiting.sum()) for one in self.entries)

    def refused(self) -> Iterator[tuple[DeadEntry, np.ndarray]]:
        """For each entry, the waiting letters that were refused again."""
        bad = np.zeros(self.letters, bool)
        bad[list(self.made.bad)] = True
        start = 0
        for entry in self.entries:
            stays = np.zeros(len(entry.waiting), bool)
            count = int(entry.waiting.sum())
            stays[entry.waiting] = bad[start : start + count]
            start += count
            yield entry, stays


def replay_dead_letters(
    table: Table | Place,
    *,
    stream: str,
    decode: Decoder,
    apply: bool = False,
    overwrite: bool = False,
) -> ReplayReport:
    """Decode the stream's dead letters again, and write those that are valid now. Without `apply` it only reports.

    With `apply` THIS WRITES, AND IT FENCES THE STREAM: a running query stops, and continues when it is started again.

    1. check: end here if there is nothing to do, or if keys are in the table already (see `overwrite`); nothing was
       written.
    2. take over the stream: from here on no other replay and no batch commits. Read its log again.
    3. per 64 MB of letters: decode, append the rows to the stream's shards, one commit record.
    4. stop like a stream: flush, take a checkpoint, and unseal the shards for native Lance.

    Raises InvalidInput, NotFound (no such stream), Fenced if another driver took the stream back, DataLoss, Transient.
    """
    table = as_table(table)
    check_decoder(decode, table)
    check_stream(table.home.records, stream, table.uri)
    maker = RowMaker(schema=table.home.schema, sharding=table.sharding, decode=decode, of_letters=True)
    state = CommitLog(table.home.records, stream, table.uri).read()
    looked = _looked(table, maker, state)
    if not apply or not looked.rows:
        return looked
    if looked.present and not overwrite:
        raise InvalidInput(
            f"{looked.present} of the keys are in the table already; a replay would overwrite them with older values.",
            table=table.uri,
            stream=stream,
            advice="pass overwrite=True (--overwrite) if the dead letters are newer; nothing was written",
        )
    opened = state.head.opened
    assert opened is not None, "a stream with dead letters was opened"
    query_id = f"{REPLAY}{uuid.uuid4()}"
    free = partial(free_of_batches, table.home, table.shard_ids(), run_here)
    free(())
    described = provenance_value(decode, table.home.schema, changed=False)
    driver = StreamDriver.open(table.home, stream, query_id, opened.shards, free=free, decoder=described)
    _check_columns(table)
    done = ReplayReport(stream, applied=True, present=looked.present)
    ends = {log: ReplayProgress.of(text) for log, text in driver.head.opaque_ends.items()}
    for chunk in _chunks(maker, dead_entries(table.home, CommitLog(table.home.records, stream, table.uri).read())):
        done = _counted(done, chunk)
        for entry, refused in chunk.refused():
            ends[entry.log] = ends.get(entry.log, ReplayProgress()).after(entry.position, refused)
        if not chunk.made.parts:
            # No row was made: the letters stay, and no record is needed.
            continue
        logs = sorted({entry.log for entry in chunk.entries})
        written = _appended(table, driver, maker, chunk.made)
        batch = Batch(
            query_id=query_id,
            batch_id=done.batches,
            opaque=tuple(OpaqueRange(log, driver.head.opaque_ends.get(log), ends[log].text) for log in logs),
            shards=written,
            mode=driver.mode or "wal",
        )
        driver.commit(batch, partial(_check_columns, table))
        done = replace(done, batches=done.batches + 1)
    step("replayed")
    stop_stream(driver, table.shard_ids(), run_here, max_bytes=MAX_BYTES, keep=KEEP)
    return done


def _check_columns(table: Table) -> None:
    """Raises Transient if the table got a column after its rows were decoded (R22)."""
    if gained(table.home.schema, current_schema(table.home)):
        raise Transient(
            "Columns were added to the table during the replay.",
            table=table.uri,
            advice="run the replay again: it continues with the remaining letters and the new columns",
        )


def _looked(table: Table, maker: RowMaker, state: LogState) -> ReplayReport:
    found = ReplayReport(state.stream, applied=False)
    for chunk in _chunks(maker, dead_entries(table.home, state)):
        found = _counted(found, chunk)
        if table.primary_key:
            found = replace(found, present=found.present + _present(table, chunk.made))
    return found


def _counted(report: ReplayReport, chunk: _LetterBatch) -> ReplayReport:
    places: list[dict[str, Any]] = []
    for entry, refused in chunk.refused():
        if refused.any() and len(places) < EXAMPLES:
            places += entry.rows.filter(pa.array(refused)).select(["topic", "partition", "offset"]).to_pylist()
    # Both lists are in the order of the letters.
    errors = (chunk.made.bad[at] for at in sorted(chunk.made.bad))
    fresh = tuple({**place, "error": why} for place, why in zip(places, errors, strict=False))
    return replace(
        report,
        letters=report.letters + chunk.letters,
        rows=report.rows + sum(part.rows.num_rows for part in chunk.made.parts),
        refused=report.refused + len(chunk.made.bad),
        examples=(report.examples + fresh)[:EXAMPLES],
    )


def _chunks(maker: RowMaker, entries: Iterable[DeadEntry]) -> Iterator[_LetterBatch]:
    chunk, held = _LetterBatch(), 0
    for entry in entries:
        if entry.waiting.any():
            chunk.entries.append(entry)
            held += entry.rows.nbytes
        if held >= BATCH_BYTES:
            yield _made(maker, chunk)
            chunk, held = _LetterBatch(), 0
    if chunk.entries:
        yield _made(maker, chunk)


def _made(maker: RowMaker, chunk: _LetterBatch) -> _LetterBatch:
    waiting = pa.concat_tables([one.rows.filter(pa.array(one.waiting)) for one in chunk.entries])
    (batch,) = waiting.combine_chunks().to_batches()
    chunk.made = maker.make(batch)
    return chunk


def _present(table: Table, made: MadeRows) -> int:
    keys = list(table.primary_key)
    named = [pa.Table.from_batches([part.rows]).select(keys) for part in made.parts]
    if not named:
        return 0
    distinct = pa.concat_tables(named).group_by(keys).aggregate([])
    return int(table.get(distinct.select(keys)).num_rows)


def _appended(table: Table, driver: StreamDriver, maker: RowMaker, made: MadeRows) -> Parts:
    planned = driver.plan({part.shard for part in made.parts})
    plan = WritePlan(
        maker=maker,
        claims=planned.claims,
        dead_letters=planned.dead_letters,
        sources={},
        writer=WriterConfig(enable_memtable=False),
        max_entry_bytes=BATCH_BYTES,
    )
    with Attempt(plan) as attempt:
        for part in made.parts:
            attempt.add(part)
        written = [answer for answer in attempt.finish() if "shard" in answer]
    return shard_parts(written, plan.shard_ids, plan.dead_letter_ids)[0]
