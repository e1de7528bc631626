"""The one place where a store's passing faults are outlasted."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from headgate.connectors.objects.folder import FolderStore
from headgate.connectors.objects.local import LocalStore
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import Bytes, ObjectStore
from headgate.connectors.objects.read_only import ReadOnlyStore
from headgate.connectors.objects.retrying import RetryingStore
from headgate.errors import AlreadyExists, InvalidInput, NotFound, Transient
from headgate.retry import JITTER, Retry, retries
from tests.connectors.objects.suite import ObjectStoreSuite

PATIENT = Retry(attempts=200, base=0)
QUICK = Retry(attempts=2, base=0)


class BusyStore(MemoryStore):
    """Refuses the next requests, or all but every third; of a put it may lose the answer instead."""

    def __init__(self, uri: str, refused: int | None = None, *, lost: bool = False) -> None:
        super().__init__(uri)
        self.refused, self.lost, self.asked = refused, lost, 0

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        super().put_if_absent(key, data)
        if self.lost:
            raise Transient("The answer was lost.")

    def _count(self, verb: str, times: int = 1) -> None:
        self.asked += 1
        if self.asked % 3 if self.refused is None else self.asked <= self.refused:
            raise Transient("The store is busy.")
        super()._count(verb, times)


class TestRetryingStore(ObjectStoreSuite):
    """Every promise of the port, on a store that refuses two requests of three."""

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        name = uuid.uuid4().hex
        yield BusyStore(f"memory://{name}/tables/a").retrying(PATIENT)
        MemoryStore.drop(name)

    @pytest.fixture
    def other(self) -> Iterator[ObjectStore]:
        name = uuid.uuid4().hex
        yield BusyStore(f"memory://{name}").retrying(PATIENT)
        MemoryStore.drop(name)

    @pytest.fixture
    def foreign(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(str(tmp_path))


VERBS: dict[str, Callable[[ObjectStore], object]] = {
    "put_if_absent": lambda store: store.put_if_absent("new", b""),
    "put_overwrite": lambda store: store.put_overwrite("new", b""),
    "get": lambda store: store.get("k"),
    "get_range": lambda store: store.get_range("k", 0, 1),
    "head": lambda store: store.head("k"),
    "list": lambda store: store.list(""),
    "list_keys": lambda store: store.list_keys(""),
    "list_folders": lambda store: store.list_folders(""),
    "delete": lambda store: store.delete("k"),
    "copy": lambda store: store.copy("k", "copied"),
}


@pytest.fixture
def name() -> Iterator[str]:
    name = uuid.uuid4().hex
    MemoryStore(f"memory://{name}").put_if_absent("k", b"body")
    yield name
    MemoryStore.drop(name)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_tried_as_often_as_the_policy_says(name: str, verb: str) -> None:
    before, busy = retries(), BusyStore(f"memory://{name}", refused=QUICK.attempts)
    VERBS[verb](busy.retrying(QUICK))
    assert (busy.asked, retries() - before) == (3, 2)
    away = BusyStore(f"memory://{name}", refused=99)
    with pytest.raises(Transient):
        VERBS[verb](away.retrying(QUICK))
    assert away.asked == 3


def test_a_put_whose_answer_was_lost_meets_itself(name: str) -> None:
    store = BusyStore(f"memory://{name}", refused=0, lost=True).retrying(QUICK)
    with pytest.raises(AlreadyExists):
        store.put_if_absent("new", b"mine")
    assert bytes(store.get("new")) == b"mine"


def test_what_will_not_pass_is_not_tried_again(name: str) -> None:
    plain = BusyStore(f"memory://{name}", refused=0)
    with pytest.raises(NotFound):
        plain.retrying(QUICK).get("none")
    with pytest.raises(AlreadyExists):
        plain.retrying(QUICK).put_if_absent("k", b"")
    assert plain.asked == 2


VIEWS: dict[str, Callable[[ObjectStore], ObjectStore]] = {
    "itself": lambda store: store,
    "a folder": lambda store: FolderStore(store, "folder"),
    "a folder of a folder": lambda store: FolderStore(FolderStore(store, "folder"), "deeper"),
    "made twice": lambda store: FolderStore(store.retrying(), "folder").retrying(Retry(attempts=50, base=0)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_there_is_one_policy_whatever_lies_around_a_store(name: str, view: str) -> None:
    away = BusyStore(f"memory://{name}", refused=99)
    store = VIEWS[view](RetryingStore(away)).retrying(QUICK)
    assert store.retry == QUICK == store.retrying().retry == pickle.loads(pickle.dumps(store)).retry
    with pytest.raises(Transient):
        store.put_if_absent("new", b"")
    assert away.asked == 3
    with pytest.raises(Transient):
        store.put_once("new", b"")
    assert away.asked == 4
    assert store.counting is away


def test_a_store_that_only_reads_stays_so_under_another_policy(name: str) -> None:
    away = BusyStore(f"memory://{name}", refused=99)
    store = ReadOnlyStore(RetryingStore(away), "It is old.").retrying(QUICK)
    with pytest.raises(Transient):
        store.get("k")
    assert (away.asked, store.retry) == (3, QUICK)
    for put in (store.put_if_absent, store.put_once, store.put_overwrite):
        with pytest.raises(InvalidInput, match="It is old"):
            put("new", b"")
    assert away.asked == 3


# -- the policy ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry", "longest"),
    [
        (Retry(), [0.1, 0.2, 0.4, 0.8]),
        (Retry(attempts=0), []),
        (Retry(attempts=4, base=2.0, cap=5.0), [2.0, 4.0, 5.0, 5.0]),
        (Retry(attempts=2, base=9.0, cap=1.0), [1.0, 1.0]),
    ],
)
def test_pauses_double_up_to_the_cap_and_chance_shortens_them(retry: Retry, longest: list[float]) -> None:
    pauses = [list(retry.delays()) for _ in range(100)]
    for one in pauses:
        assert all(top * (1 - JITTER) <= pause <= top for pause, top in zip(one, longest, strict=True))
    assert not longest or pauses[0] != pauses[1]
    assert retry.deadline == sum(longest) + retry.cap


@pytest.mark.parametrize("seconds", [0.0, 0.05, 1.0, 3.0, 30.0, 600.0])
def test_a_policy_outlasts_the_time_that_it_was_made_for(seconds: float) -> None:
    retry = Retry.lasting(seconds)
    assert all(seconds <= sum(retry.delays()) <= 1.5 * seconds + retry.cap for _ in range(100))
    assert (retry.attempts == 0) == (seconds == 0)


@pytest.mark.parametrize("bad", [{"attempts": -1}, {"base": -0.1}, {"cap": -1.0}])
def test_a_policy_has_no_negative_numbers(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Retry(**bad)  # type: ignore[arg-type]
