"""However a store fails, one name sees no more PUTs than the policy has tries."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.connectors.objects import ObjectStore, open_store
from headgate.connectors.objects.memory import MemoryStore
from headgate.errors import HeadgateError, Poisoned, Transient
from headgate.retry import Retry, retries
from headgate.shards.config import WriterConfig
from headgate.shards.shard import Claim, TableHome
from headgate.shards.writer import ShardWriter
from tests.support.closing import ROWS, rows
from tests.support.logs import CLAIMS, batch
from tests.support.scripted import DROP, STORE_AND_DROP, ScriptedS3, scripted_s3
from tests.support.services import s3_options_for
from tests.support.stores import Fault, FaultyStore, Operation

SHARD = uuid.UUID(int=9)
TRIES = 5
USUAL = Retry(base=0.01)
"""As often as usual, only sooner."""
FAILS = {"an error of the server": 500, "throttled": 503, "two requests met": 409, "no answer": DROP}

Write = Callable[[], object]


def append(store: ObjectStore) -> Write:
    """Of an entry."""
    claim = Claim(TableHome.in_store(store, ROWS).shard(SHARD), 1, "claim", 1)
    writer = ShardWriter.attach(claim, WriterConfig(enable_memtable=False, retry=store.retry))
    return lambda: writer.put(rows(1)).wait()


def commit(store: ObjectStore) -> Write:
    """Of a batch."""
    opened = CommitLog(store, "orders", "memory://table").open("q", CLAIMS)
    return lambda: opened.commit(batch(0, 0, 10, 1), {})


def claim(store: ObjectStore) -> Write:
    """Of a shard."""
    return TableHome.in_store(store, ROWS).shard(SHARD).manifests.claim


WRITES: dict[str, tuple[Callable[[ObjectStore], Write], type[HeadgateError]]] = {
    "a WAL entry": (append, Poisoned),
    "a commit record": (commit, Poisoned),
    "a claim": (claim, Transient),
}


@pytest.fixture
def server() -> Iterator[ScriptedS3]:
    with scripted_s3() as server:
        yield server


def reached(server: ScriptedS3) -> ObjectStore:
    return open_store("s3://bucket/root", s3_options_for(server.endpoint)).retrying(USUAL)


@pytest.mark.s3
@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize("what", WRITES)
def test_a_server_that_fails_for_ever_is_sent_five_puts_of_one_name(server: ScriptedS3, what: str, fails: str) -> None:
    prepare, error = WRITES[what]
    write, before = prepare(reached(server)), server.asked["PUT"]
    server.script["PUT"], again = [FAILS[fails]] * 99, retries()
    with pytest.raises(error):
        write()
    assert server.asked["PUT"] - before == TRIES
    assert retries() - again == TRIES - 1, "every further try is counted"


@pytest.mark.parametrize("what", WRITES)
def test_a_store_that_fails_for_ever_is_sent_five_puts_of_one_name(what: str) -> None:
    prepare, error = WRITES[what]
    faulty = FaultyStore(MemoryStore(f"memory://{uuid.uuid4().hex}"))
    write, puts = prepare(faulty.retrying(USUAL)), list[str]()

    def plan(operation: Operation) -> Fault | None:
        if operation.verb != "put_if_absent":
            return None
        puts.append(operation.key)
        return Fault.FAIL

    faulty.plan = plan
    with pytest.raises(error):
        write()
    assert puts == [puts[0]] * TRIES


@pytest.mark.s3
def test_an_answer_that_was_lost_costs_one_put_more_and_nothing_twice(server: ScriptedS3) -> None:
    write, before, there = commit(reached(server)), server.asked["PUT"], len(server.objects)
    server.script["PUT"] = [STORE_AND_DROP]
    write()
    assert server.asked["PUT"] - before == 2
    assert len(server.objects) - there == 1
