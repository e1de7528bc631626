"""What every object store promises, as one suite that each store's test module runs."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.objects.port import ObjectStore
from headgate.errors import AlreadyExists, HeadgateError, InvalidInput, NotFound
from headgate.retry import Retry

THREADS = 16
RACED_KEYS = 200

ODD_KEYS = [
    "a b", "a%20b", "a%b", "a+b", "a?b", "a#b", "a*b", "ü/日本/🦀", "a=b&c", "~x", "a\\b", "[x]{y}|^`", "\"q'",
    "a:b", ".hidden", "...", "day=2024-01-01/part", "x" * 200, "-rf", "CON",
]  # fmt: skip
REFUSED_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b", "a\nb", "a\x7fb", "a\ud800"]


def race(store: ObjectStore, keys: int = RACED_KEYS) -> None:
    """Sixteen callers put every key at once: one wins each, and its body is what stays."""
    barrier = threading.Barrier(THREADS)

    def body(caller: int, key: int) -> list[bytes]:
        return [f"{caller}:{key}:".encode(), bytes([caller]) * (100 + caller)]

    def put_all(caller: int) -> set[int]:
        won = set()
        barrier.wait()
        for key in range(keys):
            try:
                store.put_if_absent(f"race/{key}", body(caller, key))
            except AlreadyExists:
                # As the contract says: it may be this caller's own, if a busy server's response was lost.
                if bytes(store.get(f"race/{key}")) != b"".join(body(caller, key)):
                    continue
            won.add(key)
        return won

    with ThreadPoolExecutor(THREADS) as pool:
        won = list(pool.map(put_all, range(THREADS)))
    winners = Counter(key for one in won for key in one)
    assert winners == Counter(dict.fromkeys(range(keys), 1))
    for caller, mine in enumerate(won):
        for key in mine:
            assert bytes(store.get(f"race/{key}")) == b"".join(body(caller, key))


class ObjectStoreSuite:
    """Subclass it, and give `store` (empty) and `other` (empty, of the same kind, with another root)."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        raise NotImplementedError

    @pytest.fixture
    def other(self) -> ObjectStore:
        raise NotImplementedError

    # -- puts and gets -----------------------------------------------------------

    def test_what_was_put_is_read_back(self, store: ObjectStore) -> None:
        store.put_if_absent("a/b/c", b"body")
        assert bytes(store.get("a/b/c")) == b"body"

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            [],
            [b"", b""],
            memoryview(b"view"),
            memoryview(b"0123456789abcdef").cast("I"),
            pa.py_buffer(b"arrow"),
            [b"one", memoryview(b"two"), b"", pa.py_buffer(b"three")],
            [bytes([i % 256]) * (i % 5) for i in range(5000)],
            [b"x" * (3 << 20), b"y" * (6 << 20)],
        ],
        ids=["empty", "no-parts", "empty-parts", "view", "wide-view", "arrow", "mixed", "past-IOV_MAX", "9MB"],
    )
    @pytest.mark.parametrize("verb", ["put_if_absent", "put_overwrite"])
    def test_a_body_is_its_parts_one_after_the_other(self, store: ObjectStore, verb: str, data: Any) -> None:
        parts = data if isinstance(data, list) else [data]
        getattr(store, verb)("k", data)
        assert bytes(store.get("k")) == b"".join(bytes(memoryview(part)) for part in parts)
        assert store.head("k").size == sum(memoryview(part).nbytes for part in parts)

    def test_a_body_lies_where_native_code_may_read_it(self, store: ObjectStore) -> None:
        for size in range(1, 40_000, 1999):
            store.put_if_absent(f"{size}", b"x" * size)
            for body in (store.get(f"{size}"), store.get_range(f"{size}", 0, size)):
                assert body.nbytes == size
                assert pa.py_buffer(body).address % 8 == 0

    def test_a_taken_name_is_refused_and_its_object_unchanged(self, store: ObjectStore) -> None:
        store.put_if_absent("k", b"first")
        with pytest.raises(AlreadyExists) as caught:
            store.put_if_absent("k", b"second, and longer")
        assert caught.value.fields()["key"] == "k"
        assert bytes(store.get("k")) == b"first"

    def test_the_next_object_of_a_folder_is_put_like_the_first(self, store: ObjectStore) -> None:
        patient = Retry(attempts=3, base=0)
        store.put_if_absent("a/0", b"first")
        patient.run(lambda: store.put_next("a/1", [b"sec", b"ond"]))
        with pytest.raises(AlreadyExists):
            patient.run(lambda: store.put_next("a/1", b"third"))
        assert bytes(store.get("a/1")) == b"second"

    def test_a_deleted_name_is_free_again(self, store: ObjectStore) -> None:
        store.put_if_absent("k", b"first")
        store.delete("k")
        store.put_if_absent("k", b"second")
        assert bytes(store.get("k")) == b"second"

    def test_of_many_callers_exactly_one_wins_each_name(self, store: ObjectStore) -> None:
        race(store)

    def test_overwrite_replaces(self, store: ObjectStore) -> None:
        store.put_overwrite("hint", b"a longer first body")
        store.put_overwrite("hint", b"2")
        assert bytes(store.get("hint")) == b"2"

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, 3, b"012"),
            (4, 3, b"456"),
            (8, 5, b"89"),
            (0, 99, b"0123456789"),
            (10, 1, b""),
            (99, 9, b""),
            (3, 0, b""),
        ],
    )
    def test_a_range_is_cut_at_the_end(self, store: ObjectStore, start: int, length: int, expected: bytes) -> None:
        store.put_if_absent("k", b"0123456789")
        assert bytes(store.get_range("k", start, length)) == expected

    @pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
    def test_a_backward_range_is_refused(self, store: ObjectStore, start: int, length: int) -> None:
        store.put_if_absent("k", b"0123456789")
        with pytest.raises(InvalidInput):
            store.get_range("k", start, length)

    def test_a_range_of_an_empty_object_is_empty(self, store: ObjectStore) -> None:
        store.put_if_absent("k", b"")
        assert bytes(store.get_range("k", 0, 10)) == b""

    # -- head, list, delete --------------------------------------------------------

    def test_head_tells_size_and_time(self, store: ObjectStore) -> None:
        store.put_if_absent("a/k", b"12345")
        info = store.head("a/k")
        assert (info.key, info.size) == ("a/k", 5)
        assert abs(datetime.now(UTC) - info.modified) < timedelta(minutes=5)

    def test_list_is_deep_and_by_folder(self, store: ObjectStore) -> None:
        for key in ["top", "a/1", "a/b/2", "ab/3", "_headgate/x/4"]:
            store.put_if_absent(key, key.encode())
        assert sorted(info.key for info in store.list("")) == ["_headgate/x/4", "a/1", "a/b/2", "ab/3", "top"]
        assert {info.key: info.size for info in store.list("a/")} == {"a/1": 3, "a/b/2": 5}
        assert list(store.list("missing/")) == []
        assert list(store.list("top/")) == []

    def test_the_keys_alone_are_those_of_a_list(self, store: ObjectStore) -> None:
        for key in ("a/1", "a/b/2", "ab/3", "top", "_headgate/x/4"):
            store.put_if_absent(key, b"x")
        for prefix in ("", "a/", "missing/", "top/"):
            assert sorted(store.list_keys(prefix)) == sorted(info.key for info in store.list(prefix))
        assert store.operations()["list"] == 8

    def test_list_folders_shows_the_next_level_only(self, store: ObjectStore) -> None:
        for key in ["top", "a/1", "a/b/2", "a/c/d/3", "ab/3"]:
            store.put_if_absent(key, b"")
        assert sorted(store.list_folders("")) == ["a", "ab"]
        assert sorted(store.list_folders("a/")) == ["b", "c"]
        assert list(store.list_folders("a/b/")) == []
        assert list(store.list_folders("missing/")) == []

    def test_a_folder_is_gone_with_its_last_object(self, store: ObjectStore) -> None:
        store.put_if_absent("a/b/1", b"")
        store.delete("a/b/1")
        assert list(store.list_folders("")) == []

    def test_a_deleted_object_is_gone(self, store: ObjectStore) -> None:
        store.put_if_absent("k", b"")
        store.delete("k")
        store.delete("k")
        store.delete("never/was")
        assert list(store.list("")) == []

    # -- copy ----------------------------------------------------------------------

    def test_copy_keeps_the_source_and_replaces_the_target(self, store: ObjectStore) -> None:
        store.put_if_absent("a/src", b"body")
        store.put_if_absent("b/dst", b"old and longer")
        store.copy("a/src", "b/dst")
        assert (bytes(store.get("a/src")), bytes(store.get("b/dst"))) == (b"body", b"body")

    def test_a_folder_is_known_to_hold_something_by_one_request(self, store: ObjectStore) -> None:
        store.put_if_absent("a/b/c", b"")
        store.put_if_absent("ab", b"")
        store.reset_operations()
        assert [store.any_below(folder) for folder in ("", "a/", "a/b/", "b/", "a/b/c/")] == [True] * 3 + [False] * 2
        assert store.operations() == {"list": 5}

    def test_copy_between_stores_of_one_kind(self, store: ObjectStore, other: ObjectStore) -> None:
        store.put_if_absent("src", b"body")
        store.copy("src", "deep/dst", other)
        assert bytes(other.get("deep/dst")) == b"body"
        assert [info.key for info in store.list("")] == ["src"]

    def test_copy_between_kinds(self, store: ObjectStore, foreign: ObjectStore) -> None:
        store.put_if_absent("src", b"body")
        store.copy("src", "away", foreign)
        foreign.copy("away", "home", store)
        assert (bytes(foreign.get("away")), bytes(store.get("home"))) == (b"body", b"body")

    # -- errors --------------------------------------------------------------------

    @pytest.mark.parametrize(
        "ask",
        [
            lambda store: store.get("missing/k"),
            lambda store: store.get_range("missing/k", 0, 1),
            lambda store: store.get_range("missing/k", 0, 0),
            lambda store: store.head("missing/k"),
            lambda store: store.copy("missing/k", "dst"),
        ],
        ids=["get", "get_range", "empty-range", "head", "copy"],
    )
    def test_a_missing_object_is_not_found(self, store: ObjectStore, ask: Callable[[ObjectStore], object]) -> None:
        with pytest.raises(NotFound) as caught:
            ask(store)
        assert caught.value.fields()["key"] == "missing/k"
        assert caught.value.fields()["store"] == store.uri
        assert caught.value.__cause__ is not None

    def test_a_folder_is_no_object(self, store: ObjectStore) -> None:
        store.put_if_absent("a/b", b"")
        for ask in (store.get, store.head):
            with pytest.raises(NotFound):
                ask("a")
        store.delete("a")
        assert [info.key for info in store.list("")] == ["a/b"]

    def test_odd_names_are_kept_as_they_are(self, store: ObjectStore) -> None:
        for key in ODD_KEYS:
            store.put_if_absent(f"odd/{key}", key.encode())
        assert {info.key for info in store.list("odd/")} == {f"odd/{key}" for key in ODD_KEYS}
        for key in ODD_KEYS:
            assert bytes(store.get(f"odd/{key}")) == key.encode()
            store.copy(f"odd/{key}", f"copied/{key}")
            store.delete(f"odd/{key}")
        assert list(store.list("odd/")) == []
        assert {info.key for info in store.list("copied/")} == {f"copied/{key}" for key in ODD_KEYS}

    @pytest.mark.parametrize("key", REFUSED_KEYS, ids=ascii)
    def test_a_name_that_could_leave_the_root_is_refused(self, store: ObjectStore, key: str) -> None:
        asks: list[Callable[[], object]] = [
            lambda: store.put_if_absent(key, b""),
            lambda: store.put_overwrite(key, b""),
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.head(key),
            lambda: store.delete(key),
            lambda: store.copy(key, "x"),
        ]
        for ask in asks:
            with pytest.raises(InvalidInput):
                ask()

    @pytest.mark.parametrize("prefix", ["a", "/", "../", "a//"])
    def test_a_folder_that_is_none_is_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(InvalidInput):
            next(store.list(prefix), None)
        with pytest.raises(InvalidInput):
            next(store.list_folders(prefix), None)
        with pytest.raises(InvalidInput):
            next(store.list_keys(prefix), None)

    def test_errors_cross_processes(self, store: ObjectStore) -> None:
        with pytest.raises(NotFound) as caught:
            store.get("k")
        again = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(again, NotFound)
        assert again.fields() == caught.value.fields()
        assert isinstance(again, HeadgateError)

    # -- counting, pickling ----------------------------------------------------------

    def test_every_request_counts_once(self, store: ObjectStore) -> None:
        store.put_if_absent("a/k", b"x")
        assert store.operations() == {"put": 1}
        store.put_overwrite("a/k", b"y")
        store.get("a/k")
        store.get_range("a/k", 0, 1)
        store.head("a/k")
        list(store.list(""))
        list(store.list_folders(""))
        store.copy("a/k", "a/l")
        store.delete("a/k")
        assert store.operations() == {"put": 2, "get": 2, "head": 1, "list": 2, "copy": 1, "delete": 1}
        store.reset_operations()
        assert store.operations() == {}

    def test_a_pickled_store_is_the_same_place(self, store: ObjectStore) -> None:
        before = pickle.loads(pickle.dumps(store))
        store.put_if_absent("k", b"body")
        after = pickle.loads(pickle.dumps(store))
        for copy in (before, after):
            assert bytes(copy.get("k")) == b"body"
            assert copy.operations() == {"get": 1}
            assert copy.uri == store.uri
            assert store.uri in repr(copy)
