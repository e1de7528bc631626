"""Over real entries in a real WAL: what counts is read, and a loss is never skipped."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from headgate.checkpoints.log.records import ShardClaim
from headgate.checkpoints.log.state import LogState, empty, fold, replayed, unfolded
from headgate.checkpoints.log.visibility import Visible
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Corrupt, DataLoss, Fenced, InvalidInput
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.encoder import encode_rows
from headgate.shards.wal.entry import Tags
from headgate.shards.wal.tailer import WalTailer
from tests.support.logs import SHARD, batch, batch_record, log, open_record

SCHEMA = RowSchema.of(pa.schema([pa.field("id", pa.int64())]))


def written(store: ObjectStore, *attempts: str | None) -> Shard:
    """A shard with a barrier at 0 and one entry per attempt from 1 on, its row saying its position."""
    shard = Shard(TableHome.in_store(store, SCHEMA), SHARD)
    appender = WalAppender.open(shard)
    for position, attempt in enumerate(attempts, 1):
        columns = [pa.array([position]) if name == "id" else pa.array([False]) for name in SCHEMA.storage.names]
        stored = pa.record_batch(columns, schema=SCHEMA.storage)
        assert appender.append([encode_rows([stored])], Tags(attempt)).position == position
    return shard


def state(*listed: tuple[int, str]) -> LogState:
    records = [batch_record(2 + n, n, position, attempt=attempt) for n, (position, attempt) in enumerate(listed)]
    return replayed(empty("orders"), [open_record(), *records])


def positions(shard: Shard, visible: Visible, start: int = 1, stop: int | None = None) -> list[int]:
    entries = WalTailer(shard).read(start, stop)
    return [found.position for found in visible.visible_entries(shard.id, entries, start, stop)]


def test_only_what_a_record_lists_or_what_has_no_tag_is_read(store: ObjectStore) -> None:
    shard = written(store, "a", "loser", None, "b", "in flight")
    assert positions(shard, Visible.of([state((1, "a"), (4, "b"))])) == [1, 3, 4]
    assert positions(shard, Visible.of([])) == [3]
    assert positions(shard, Visible.of([state((1, "a"), (4, "b"))]), start=2, stop=4) == [3]


def test_a_folded_log_gives_the_same_entries(store: ObjectStore) -> None:
    shard = written(store, "a", "loser", None, "b", "in flight")
    before = state((1, "a"), (4, "b"))
    assert positions(shard, Visible.of([unfolded(fold(before, {}))])) == [1, 3, 4]
    assert positions(shard, Visible.of([unfolded(fold(before, {SHARD: 1}))]), start=2) == [3, 4]


@pytest.mark.parametrize("start", [1, 4])
def test_a_listed_entry_of_another_attempt_is_data_loss(store: ObjectStore, start: int) -> None:
    shard = written(store, "a", "a", "a", "b")
    with pytest.raises(DataLoss, match="of another attempt") as error:
        positions(shard, Visible.of([state((1, "a"), (4, "a"))]), start)
    assert error.value.position == 4


def test_a_listed_entry_without_a_tag_is_data_loss_also_below_the_fold(store: ObjectStore) -> None:
    shard = written(store, "a", None)
    listed = state((1, "a"), (2, "b"))
    for known in (listed, unfolded(fold(listed, {}))):
        with pytest.raises(DataLoss):
            positions(shard, Visible.of([known]))


@pytest.mark.parametrize("known", [state((2, "a"), (7, "b")), unfolded(fold(state((2, "a"), (7, "b")), {}))])
def test_a_listed_position_past_the_tip_is_data_loss(store: ObjectStore, known: LogState) -> None:
    shard = written(store, "x", "a", "x")
    with pytest.raises(DataLoss, match="position 7, which a commit record lists") as error:
        positions(shard, Visible.of([known], "memory://table"))
    assert (error.value.position, error.value.shard, error.value.table) == (7, str(SHARD), "memory://table")


def test_a_listed_position_that_the_entries_leave_out_is_data_loss(store: ObjectStore) -> None:
    shard = written(store, "a", "b", "c")
    visible = Visible.of([state((1, "a"), (2, "b"), (3, "c"))])
    entries = [found for found in WalTailer(shard).read(1) if found.position != 2]
    with pytest.raises(DataLoss, match="position 2, which a commit record lists"):
        list(visible.visible_entries(SHARD, entries, 1))


def test_what_lies_at_or_below_replay_after_is_not_asked_for(store: ObjectStore) -> None:
    shard = written(store, "a", "b", "c")
    store.delete(shard.wal_key(1))
    assert positions(shard, Visible.of([state((1, "a"), (2, "b"), (3, "c"))]), start=2) == [2, 3]


def test_a_manifest_that_is_older_than_the_fold_must_be_read_again(store: ObjectStore) -> None:
    """Otherwise rows that were flushed since would be taken for dead."""
    shard = written(store, "a", "b", "c")
    visible = Visible.of([unfolded(fold(state((1, "a"), (2, "b"), (3, "c")), {SHARD: 2}))])
    assert not visible.covers(SHARD, 0)
    assert not visible.covers(SHARD, 1)
    assert visible.covers(SHARD, 2)
    with pytest.raises(InvalidInput, match="folded after this reader read the manifest"):
        positions(shard, visible, start=1)
    assert positions(shard, visible, start=3) == [3]


def test_streams_that_owned_a_shard_one_after_the_other_add_up(store: ObjectStore) -> None:
    shard = written(store, "a", "b", "c")
    visible = Visible.of([state((1, "a")), unfolded(fold(state((3, "c")), {})), empty("third")])
    assert positions(shard, visible) == [1, 3]
    with pytest.raises(Corrupt):
        Visible.of([state((1, "a")), state((1, "b"))])


def test_a_zombies_entries_stay_invisible_whatever_it_tries(store: ObjectStore) -> None:
    shard = written(store, "a", "zombie")
    claims = {"s0": ShardClaim(SHARD, 1, "c", 0)}
    opened = log(store).open("q", claims)
    opened.commit(batch(0, 0, 10, 1, attempt="a"), {})
    log(store).open("q", {"s0": ShardClaim(SHARD, 2, "d", 3)})
    with pytest.raises(Fenced):
        opened.commit(batch(1, 10, 20, 2, attempt="zombie"), {})
    visible = Visible.of([log(store).read()])
    assert positions(shard, visible) == [1]
    assert not visible(SHARD, 2, "zombie")
    assert visible(SHARD, 2, None)
    assert not visible(uuid.uuid4(), 1, "a")
