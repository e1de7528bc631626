"""One budget for all caches of a process: what stays, what goes, and how large it is."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import headgate
from headgate import caches
from headgate.caches import Cache, cache_bytes, cache_usage, machine_memory, set_cache_bytes
from headgate.errors import InvalidInput
from headgate.streaming.options import READ_OPTIONS, parse_options, session_defaults, sink_options
from headgate.table.create import create_table
from headgate.table.table import Table, open_table

Budget = Callable[[int], None]

LETTERS: Cache[bytes] = Cache("test_letters", len)
NUMBERS: Cache[tuple[int, ...]] = Cache("test_numbers", len)


@pytest.fixture(autouse=True)
def alone(cache_budget: Budget) -> None:
    """Nothing that other tests have kept."""
    cache_budget(0)


def test_the_least_used_goes_first_whichever_cache_has_it(cache_budget: Budget) -> None:
    cache_budget(10)
    LETTERS.put("a", b"aaa")
    NUMBERS.put("a", (1, 2, 3))
    LETTERS.put("b", b"bbb")
    assert LETTERS.get("a") == b"aaa"
    LETTERS.put("c", b"cccc")
    assert (NUMBERS.get("a"), LETTERS.get("a"), LETTERS.get("b"), LETTERS.get("c")) == (None, b"aaa", b"bbb", b"cccc")
    assert cache_usage().nbytes["test_letters"] == cache_usage().total == 10
    LETTERS.put("c", b"c")
    assert cache_usage().total == 7
    cache_budget(4)
    assert (LETTERS.get("b"), LETTERS.get("c"), cache_usage().total) == (b"bbb", b"c", 4)
    LETTERS.drop("b")
    assert (LETTERS.get("b"), cache_usage().total) == (None, 1)


def test_what_is_larger_than_the_budget_is_made_each_time_and_costs_no_other(cache_budget: Budget) -> None:
    cache_budget(10)
    LETTERS.put("a", b"aaa")
    assert LETTERS.get_or_make("large", lambda: b"l" * 11) == b"l" * 11
    assert (LETTERS.get("large"), LETTERS.get("a")) == (None, b"aaa")
    assert LETTERS.get_or_make("a", lambda: b"other") == b"aaa"
    LETTERS.put("a", b"l" * 11)
    assert LETTERS.get("a") is None, "not what it was before"


class Shared:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


WHOLES: Cache[list[Shared]] = Cache("test_wholes", lambda whole: 0, lambda whole: ((one, one.nbytes) for one in whole))


def test_what_values_share_counts_once_and_keeps_its_name_as_long_as_one_holds_it(cache_budget: Budget) -> None:
    cache_budget(100)
    index = Shared(50)
    WHOLES.put("index", [index])
    WHOLES.put("search", [index, Shared(10)])
    assert cache_usage().nbytes["test_wholes"] == 60
    LETTERS.put("a", b"a" * 45)
    # The index is the oldest, and to drop it would free nothing; the search is next.
    assert (WHOLES.get("search"), WHOLES.get("index"), cache_usage().total) == (None, [index], 95)
    LETTERS.put("b", b"b" * 50)
    assert (WHOLES.get("index"), LETTERS.get("a"), cache_usage().total) == ([index], None, 100)
    cache_budget(0)
    assert cache_usage().total == 0


def test_threads_share_a_budget(cache_budget: Budget) -> None:
    cache_budget(1_000)
    wrong: list[object] = []

    def use(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(3_000):
            number = chance.randrange(60)
            found = LETTERS.get_or_make(number, lambda number=number: b"x" * number)  # type: ignore[misc]
            if len(found) != number or cache_usage().total > 1_000:
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    cache_budget(0)
    assert cache_usage().total == 0


FORKING = """
import os
from headgate import caches

letters = caches.Cache("letters", len)
caches.set_cache_bytes(100)
letters.put("a", b"aaa")
with caches._budget._lock:
    child = os.fork()
    if not child:
        letters.put("b", b"b")
        os._exit(0 if (letters.get("a"), caches.cache_usage().total, caches.cache_bytes()) == (None, 1, 100) else 1)
assert os.waitpid(child, 0)[1] == 0
assert letters.get("a") == b"aaa"
"""


def test_a_forked_process_begins_empty_and_is_not_locked() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=60)


# -- how large it is ------------------------------------------------------------------------------


def test_the_budget_is_set_by_a_number_or_a_text(cache_budget: Budget) -> None:
    headgate.set_cache_bytes("16m")
    assert cache_bytes() == cache_usage().limit == 16 << 20
    for value in (-1, True, 1.5, "much", None):
        with pytest.raises(InvalidInput, match="cache_bytes"):
            set_cache_bytes(value)  # type: ignore[arg-type]


def test_the_option_has_all_spellings() -> None:
    by_session = session_defaults({"spark.headgate.cacheBytes": "16m"})
    assert sink_options({}, by_session).cache_bytes == 16 << 20
    assert sink_options({"cache_bytes": 5}, by_session).cache_bytes == 5
    assert parse_options({"cachebytes": "1k"})["cache_bytes"] == 1 << 10
    assert parse_options({"cacheBytes": "1k"}, table=READ_OPTIONS)["cache_bytes"] == 1 << 10
    with pytest.raises(InvalidInput, match="cache_bytes"):
        sink_options({"cache_bytes": 0})


@pytest.mark.parametrize(("given", "shown"), [(None, ""), ("300k", "307200"), ("much", "HEADGATE_CACHE_BYTES")])
def test_the_environment_sets_the_budget(given: str | None, shown: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != caches.VARIABLE}
    environment |= {} if given is None else {caches.VARIABLE: given}
    command = [sys.executable, "-c", "from headgate.caches import cache_bytes; print(cache_bytes())"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    if given is None:
        assert int(done.stdout) == min(1 << 30, machine_memory() // 4)
    else:
        assert shown in (done.stdout if done.returncode == 0 else done.stderr)


@pytest.mark.parametrize(
    ("cgroups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1000000\n"}, 1_000_000),
        ("0::/a/b\n", {"memory.max": "max\n", "a/memory.max": "3000\n", "a/b/memory.max": "max\n"}, 3_000),
        ("0::/not/seen/in/here\n", {"memory.max": "5000\n"}, 5_000),
        ("4:cpu:/x\n9:memory:/x\n", {"memory/x/memory.limit_in_bytes": "7000\n"}, 7_000),
        ("9:memory:/x\n", {"memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n"}, None),
        ("0::/\n", {}, None),
        (None, {}, None),
    ],
)
def test_a_control_group_bounds_the_memory(
    tmp_path: Path, cgroups: str | None, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if cgroups is not None:
        (tmp_path / "cgroup").write_text(cgroups)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine_memory(tmp_path / "cgroup", tmp_path) == (machine if expected is None else expected)


# -- what tables keep -----------------------------------------------------------------------------

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])


def filled(path: Path, seed: int, count: int = 3_000) -> Table:
    """With rows in an indexed base, in an SSTable and in the tail, and deletes of each."""
    chance, table = random.Random(seed), create_table(str(path), SCHEMA, primary_key="id", full_text="note")

    def rows(first: int) -> pa.Table:
        notes = [" ".join(f"w{chance.randrange(500)}" for _ in range(10)) for _ in range(count)]
        return pa.table({"id": range(first, first + count), "note": notes}, schema=SCHEMA)

    with table.writer("single") as writer:
        writer.put(rows(0))
        writer.flush_memtable()
    table.compact()
    with table.writer("single") as writer:
        writer.put(rows(count))
        writer.flush_memtable()
        writer.put(rows(2 * count))
        writer.delete(pa.record_batch({"id": pa.array([1, count + 1, 2 * count + 1], pa.int64())}))
    return table


def use(table: Table, count: int = 3_000) -> None:
    assert table.scan(columns=["id"]).read_all().num_rows == 3 * count - 3
    assert table.get(pa.record_batch({"id": pa.array([1, 2, count + 2], pa.int64())})).num_rows == 2
    assert table.search("w1 w2", k=5).num_rows == 5


def resident() -> int:
    gc.collect()
    pa.default_memory_pool().release_unused()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for the process's memory")
def test_many_tables_in_one_process_stay_below_a_small_budget(tmp_path: Path, cache_budget: Budget) -> None:
    made = [filled(tmp_path / str(number), number) for number in range(12)]
    cache_budget(1 << 30)
    tables = [open_table(table.uri) for table in made]
    for table in tables:
        use(table)
    wanted = cache_usage()
    assert {name for name, nbytes in wanted.nbytes.items() if nbytes} >= {
        *("bases", "indexes", "postings", "prepared_searches", "searchers", "sstable_keys", "superseded_rows"),
        *("tail_indexes", "tails"),
    }
    budget = wanted.total // 4
    cache_budget(budget)
    before = resident()
    for _ in range(3):
        for table in tables:
            use(table)
            assert cache_usage().total <= budget
    # Loosely: without a budget each round adds nothing either, and a leak of what was let go adds it in each.
    assert resident() - before < 2 * wanted.total + (64 << 20)


def test_a_table_that_is_let_go_lets_go_of_its_tails_and_its_base(tmp_path: Path, cache_budget: Budget) -> None:
    cache_budget(1 << 30)
    table = open_table(filled(tmp_path / "t", 1).uri)
    table.scan().read_all()
    kept = cache_usage().nbytes
    assert kept["tails"] >= table.cache.nbytes > 0
    assert kept["bases"]
    del table
    gc.collect()
    kept = cache_usage().nbytes
    assert kept["tails"] == kept["bases"] == 0


def test_without_a_budget_everything_works(tmp_path: Path, cache_budget: Budget) -> None:
    table = filled(tmp_path / "t", 2)
    for _ in range(2):
        use(table)
    assert cache_usage().total == 0
