from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from headgate.checkpoints.clone.intent import CloneIntent, same_call
from headgate.checkpoints.clone.mapping import (
    ShardPlan,
    check_named,
    cloned_fold,
    cloned_manifest,
    cloned_open,
    lost_position,
    rowless,
    shard_plans,
)
from headgate.checkpoints.log.records import BatchRecord, Fold, FoldedShard, OpenRecord, ShardClaim, ShardPart
from headgate.checkpoints.snapshots.checkpoint import PinnedShard, TableCheckpoint
from headgate.errors import Corrupt, InvalidInput
from headgate.records import decode, encode
from headgate.shards.manifest.model import CLAIM_ID, OWNER, WRITE_ID, Manifest, SsTable

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
NAMED, DEAD, BY_HAND = uuid.uuid5(OLD, "s0"), uuid.uuid5(OLD, "dead-letters:s0 of orders"), uuid.UUID(int=9)


def manifest(shard_id: uuid.UUID = NAMED, **changed: object) -> Manifest:
    made = Manifest(
        version=7,
        epoch=4,
        replay_after=5,
        last_seen=6,
        generation=4,
        sstables=tuple(SsTable(generation, f"x_gen_{generation}") for generation in (1, 2, 3)),
        spec_id=1,
        shard_id=shard_id,
        fields=((CLAIM_ID, b"theirs"), (WRITE_ID, b"theirs"), (OWNER, b"orders"), ("bucket", b"\x01")),
        sealed=True,
        unknown=b"",
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def fold() -> Fold:
    return Fold(
        sequence=12,
        stream="orders",
        opened=OpenRecord(
            record_id="o",
            sequence=8,
            stream="orders",
            query_id="q",
            shards={"s0": ShardClaim(NAMED, 4, "theirs", 6), "s9": ShardClaim(uuid.uuid5(OLD, "s9"), 1, "later", 0)},
        ),
        last=BatchRecord(
            record_id="r",
            sequence=12,
            stream="orders",
            open_id="o",
            query_id="q",
            batch_id=3,
            shards={"s0": ShardPart(NAMED, "a", (8,), 10, 100)},
            dead_letters={"dead-letters:s0": ShardPart(DEAD, "b", (0,), 1, 10)},
        ),
        ends=(("t", 0, 40),),
        opaque_ends=(),
        shards={
            NAMED: FoldedShard("s0", 5, 8, ((7, 8),)),
            DEAD: FoldedShard("dead-letters:s0", 0, 0, ((0, 0),)),
        },
    )


def checkpoint(**changed: object) -> TableCheckpoint:
    made = TableCheckpoint(
        checkpoint_id="c",
        name="then",
        table_id=OLD,
        scope="durable",
        base_version=3,
        shards={NAMED: PinnedShard(manifest(), 9), BY_HAND: PinnedShard(manifest(BY_HAND), 6)},
        streams={"orders": fold()},
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def plans(marks: dict[uuid.UUID, int] | None = None) -> dict[uuid.UUID, ShardPlan]:
    return {plan.pinned.shard_id: plan for plan in shard_plans(checkpoint(), NEW, marks or {})}


def test_shards_are_named_by_the_new_table_and_those_without_a_name_by_their_old_id() -> None:
    found = plans()
    assert (found[NAMED].name, found[NAMED].shard_id) == ("s0", uuid.uuid5(NEW, "s0"))
    assert (found[BY_HAND].name, found[BY_HAND].shard_id) == (None, uuid.uuid5(NEW, str(BY_HAND)))


@pytest.mark.parametrize(
    ("replay_after", "end", "last_seen", "tail", "barrier"),
    [
        (5, 9, 6, [6, 7, 8], 9),
        (5, 6, 5, [], 6),
        (5, 6, 0, [], 6),
        (0, 0, 0, [], 1),
        (0, 1, 0, [], 1),
        (0, 2, 0, [1], 2),
        (5, 7, 8, [6, 7, 8], 9),
    ],
)
def test_the_tail_goes_to_the_end_and_to_what_the_manifest_has_seen(
    replay_after: int, end: int, last_seen: int, tail: list[int], barrier: int
) -> None:
    pinned = PinnedShard(manifest(replay_after=replay_after, last_seen=last_seen), end)
    plan = ShardPlan(pinned, NEW, None, ())
    assert (list(plan.tail), plan.barrier) == (tail, barrier)


@pytest.mark.parametrize(
    ("missing", "replay_after", "lost"),
    [([6], 5, 6), ([6], 6, None), ([6, 7], 6, 7), ([6, 9], 9, None), ([7], 5, 7), ([], 0, None)],
)
def test_missing_entries_are_lost_unless_the_source_has_flushed_them(
    missing: list[int], replay_after: int, lost: int | None
) -> None:
    assert lost_position(missing, replay_after) == lost


def test_sstables_that_the_base_holds_are_left_out_and_a_base_that_knows_more_is_refused() -> None:
    assert [one.generation for one in plans({NAMED: 2})[NAMED].sstables] == [3]
    assert [one.generation for one in plans({NAMED: 3})[NAMED].sstables] == []
    with pytest.raises(Corrupt, match="holds generation 4"):
        plans({NAMED: 4})


def test_a_checkpoint_that_lists_rows_of_a_shard_which_it_does_not_have_is_refused() -> None:
    with pytest.raises(Corrupt, match="'s0'"):
        shard_plans(checkpoint(shards={}), NEW, {})


@pytest.mark.parametrize(("tail_epoch", "epoch"), [(0, 5), (3, 5), (4, 5), (6, 7)])
def test_the_first_manifest_is_a_claim_of_its_own_above_every_entry(tail_epoch: int, epoch: int) -> None:
    plan = plans({NAMED: 1})[NAMED]
    made = cloned_manifest(plan, tail_epoch, NEW)
    assert (made.version, made.epoch, made.shard_id) == (1, epoch, uuid.uuid5(NEW, "s0"))
    assert (made.replay_after, made.generation, made.last_seen) == (5, 4, plan.barrier)
    assert [one.generation for one in made.sstables] == [2, 3]
    assert (made.owner, made.sealed, made.spec_id, made.field("bucket")) == ("orders", True, 1, b"\x01")
    assert made.claim_id == plan.claim_id != "theirs"
    assert made.write_id != "theirs"
    assert made.is_of(NEW)
    assert not made.is_of(OLD)
    assert cloned_manifest(plan, tail_epoch, NEW) == made


def test_a_log_is_the_same_under_the_clones_ids_and_names_no_claim_of_the_source() -> None:
    found = plans()
    manifests = {plan.shard_id: cloned_manifest(plan, 0, NEW) for plan in found.values()}
    made = cloned_fold(fold(), checkpoint(), NEW, found)
    new, dead = uuid.uuid5(NEW, "s0"), uuid.uuid5(NEW, "dead-letters:s0 of orders")
    assert (made.sequence, made.ends, set(made.shards)) == (12, (("t", 0, 40),), {new, dead})
    assert made.shards[new].visible == ((7, 8),)
    assert made.last is not None
    assert (made.last.shards["s0"].shard_id, made.last.dead_letters["dead-letters:s0"].shard_id) == (new, dead)
    assert made.opened is None
    opened = cloned_open(fold(), NEW, found, manifests)
    assert (opened.sequence, opened.stream, opened.query_id, set(opened.shards)) == (13, "orders", "q", {"s0"})
    claim = opened.shards["s0"]
    assert (claim.shard_id, claim.epoch, claim.claim_id) == (new, manifests[new].epoch, manifests[new].claim_id)
    assert claim.barrier == found[NAMED].barrier
    assert cloned_open(fold(), NEW, found, manifests) == opened
    empty = replace(fold(), opened=None, last=None, shards={})
    assert cloned_fold(empty, checkpoint(), NEW, found) == empty
    assert cloned_open(empty, NEW, found, manifests).shards == {}


def test_a_log_that_lists_a_dead_letter_log_under_a_strange_id_is_refused() -> None:
    strange = replace(fold(), shards={BY_HAND: FoldedShard("dead-letters:s0", 0, 0, ())}, last=None)
    with pytest.raises(Corrupt, match="under a wrong id"):
        cloned_fold(strange, checkpoint(), NEW, {})


def test_only_shards_with_rows_need_a_name() -> None:
    found = plans()
    check_named([found[NAMED]], "t")
    with pytest.raises(InvalidInput, match="name is unknown") as refused:
        check_named(found.values(), "t")
    assert refused.value.shard == str(BY_HAND)
    empty = PinnedShard(manifest(BY_HAND, sstables=(), last_seen=5), 6)
    check_named([ShardPlan(empty, NEW, None, ())], "t")


INTENT = CloneIntent(table_id=NEW, source_uri="src", source_id=OLD, checkpoint="then", deep=True, wal_uri="wal")


def test_an_intent_is_read_back_as_it_was_written_and_damage_is_found() -> None:
    assert decode(CloneIntent, encode(INTENT), "it") == INTENT
    with pytest.raises(Corrupt):
        decode(CloneIntent, encode(INTENT).replace(b"src", b"crs"), "it")
    with pytest.raises(Corrupt):
        decode(CloneIntent, b"{}", "it")


@pytest.mark.parametrize(
    "changed", [{"source_id": NEW}, {"checkpoint": None}, {"deep": False}, {"wal_uri": None}], ids=str
)
def test_another_call_is_not_the_same_clone(changed: dict[str, object]) -> None:
    assert same_call(INTENT, replace(INTENT, table_id=OLD, source_uri="by another name"), "dst") == INTENT
    with pytest.raises(InvalidInput, match=next(iter(changed))):
        same_call(INTENT, replace(INTENT, **changed), "dst")  # type: ignore[arg-type]


def test_a_clone_of_now_pins_under_a_name_that_tells_it_and_one_of_a_checkpoint_reads_that() -> None:
    assert INTENT.pin == "then"
    assert replace(INTENT, checkpoint=None).pin == f"clone-{NEW}"


def _history(*steps: tuple[int, int, str | None]) -> list[Manifest]:
    """Manifests from version 1 on, by epoch, replay_after and owner."""
    found = []
    for version, (epoch, replay_after, owner) in enumerate(steps, 1):
        one = manifest(replay_after=replay_after, version=version, epoch=epoch, fields=())
        found.append(one if owner is None else one.with_field(OWNER, owner.encode()))
    return found


@pytest.mark.parametrize(
    ("tail", "history", "rowless_ones"),
    [
        # Streams alone: what no record lists.
        (range(1, 5), [(1, 0, "s")], [1, 2, 4]),
        (range(6, 8), [(1, 0, None), (1, 3, None), (2, 3, "s"), (2, 5, "s")], [6, 7]),
        # Who flushed may have put rows after it, be it before a stream came.
        (range(6, 8), [(1, 0, None), (1, 5, None), (2, 5, "s")], []),
        (range(6, 8), [(1, 5, None), (2, 5, "s"), (2, 5, "s")], []),
        # A writer that has opened and closed since: its barrier fills a tail of one.
        (range(6, 7), [(1, 0, None), (1, 5, None), (2, 5, None), (2, 5, None)], [6]),
        (range(6, 8), [(1, 0, None), (1, 5, None), (2, 5, None), (2, 5, None)], []),
        (range(6, 8), [(1, 5, None), (2, 5, None), (2, 5, None), (3, 5, None), (3, 5, None)], [6, 7]),
        # One that died before its barrier proves nothing; nor does the first, whose barrier is entry 0.
        (range(6, 7), [(1, 0, None), (1, 5, None), (2, 5, None)], []),
        (range(1, 2), [(1, 0, None), (1, 0, None)], []),
        (range(1, 2), [], []),
    ],
)
def test_which_entries_hold_no_rows_is_told_by_records_and_manifests(
    tail: range, history: list[tuple[int, int, str | None]], rowless_ones: list[int]
) -> None:
    assert list(rowless(tail, {3}, _history(*history))) == rowless_ones


def test_where_old_manifests_were_collected_direct_writers_may_have_put_rows() -> None:
    kept = _history((1, 5, None), (2, 5, None), (2, 5, None))
    assert list(rowless(range(6, 7), (), kept)) == [6]
    assert list(rowless(range(6, 7), (), kept[1:])) == []
