"""A full disk, a read-only or forbidden directory, no file descriptors: a clear error, nothing torn, it works again.

The full disk is a small file system of its own where one can be mounted, else a limit on the size of files.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.errors import HeadgateError, Poisoned, StoreFull
from headgate.shards.writer import ShardWriter
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.clones import CONFIG, DIRECT, WAL_ONLY, content, rows, streamed
from tests.support.disk import filled, small_disk
from tests.support.life import SCHEMA

Without = Callable[[], AbstractContextManager[None]]
"""While it lasts, the resource is gone."""

LARGE = pa.record_batch({"id": range(100, 3100), "note": [str(i) * 40 for i in range(3000)]}, schema=SCHEMA)


def closing(table: Table) -> None:
    """Nothing is torn: fsck finds nothing, and no temporary file stays."""
    assert [str(one) for one in fsck(table.uri).findings] == []
    assert [*table.home.store.temporaries()] == []


def refused(call: Callable[[], object], without: Without, *kinds: type[HeadgateError], saying: str) -> None:
    """The call fails clearly while the resource is gone."""
    with without(), pytest.raises(kinds) as caught:
        call()
    assert saying in str(caught.value)


def operations(table: Table, path: Path) -> dict[str, Callable[[], object]]:
    """What an operator or a stream does, each once."""
    return {
        "open a writer": lambda: table.writer(DIRECT, CONFIG).close(),
        "checkpoint": lambda: table.checkpoint(),
        "flush": lambda: table.flush(),
        "compact": lambda: table.compact(),
        "index": lambda: table.build_index("note"),
        "clone": lambda: table.clone(str(path / "clone"), names=[DIRECT]),
        "create": lambda: create_table(str(path / "made"), SCHEMA),
        "add a column": lambda: table.add_column(pa.field("more", pa.int64())),
    }


# -- a full disk -----------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB, where this process may mount one; else a plain directory."""
    with small_disk(tmp_path / "disk", 12):
        yield tmp_path / "disk"


@pytest.fixture
def full(disk: Path) -> Without:
    """While it lasts, no byte finds room; on a plain directory, no file may grow."""

    @contextlib.contextmanager
    def limit() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return partial(filled, disk) if os.path.ismount(disk) else limit


def test_on_a_full_disk_everything_fails_clearly_and_works_again(disk: Path, full: Without, tmp_path: Path) -> None:
    table, _ = streamed(disk / "t", full_text=("note",))
    wanted = content(table)
    saying = "No space left" if os.path.ismount(disk) else "File too large"
    for name, call in operations(table, disk).items():
        try:
            refused(call, full, StoreFull, saying=saying)
        except BaseException as error:
            raise AssertionError(name) from error
        assert content(open_table(table.uri)) == wanted, name
    closing(table)
    for call in operations(table, disk).values():
        call()
    assert content(open_table(str(disk / "clone")))[0] == wanted[0]
    assert sorted(open_table(table.uri).scan(columns=["id"]).read_all()["id"].to_pylist()) == sorted(
        identity for identity, _ in wanted[0].elements()
    )
    closing(table)


def test_on_a_full_disk_garbage_is_collected_and_its_room_is_there_for_others(disk: Path, full: Without) -> None:
    table, _ = streamed(disk / "t")
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(LARGE)
    table.flush()
    table.compact()
    wanted = content(table)
    with full():
        # Nothing is old enough yet, by the store's own times and however late this machine believes it is.
        assert not table.collect_garbage(apply=True).found
        collected = table.collect_garbage(min_age=timedelta(0), apply=True)
        assert {one.kind for one in collected.found} >= {"wal entry", "sstable"}
        assert content(open_table(table.uri)) == wanted
        if os.path.ismount(disk):
            with table.writer(DIRECT, WAL_ONLY) as writer:
                writer.put(rows(-5))
    with table.writer(DIRECT, WAL_ONLY) as writer:
        writer.put(rows(-6))
    table.collect_garbage(min_age=timedelta(0), apply=True)
    closing(table)


@pytest.mark.parametrize("config", [WAL_ONLY, CONFIG], ids=["wal", "memtable"])
def test_a_writer_on_a_full_disk_keeps_what_it_acknowledged(disk: Path, full: Without, config: object) -> None:
    table = create_table(str(disk / "t"), SCHEMA)
    writer = table.writer("single", config)  # type: ignore[arg-type]
    writer.put(rows(1))
    refused(lambda: writer.put(LARGE).wait(), full, Poisoned, saying="No space" if os.path.ismount(disk) else "large")
    with contextlib.suppress(HeadgateError):
        writer.close()
    closing(table)
    with table.writer("single", config) as again:  # type: ignore[arg-type]
        again.put(rows(2))
    assert sorted(open_table(table.uri).scan(columns=["id"]).read_all()["id"].to_pylist()) == [1, 2]
    closing(table)


def test_a_flush_on_a_full_disk_loses_no_row(disk: Path, full: Without) -> None:
    table = create_table(str(disk / "t"), SCHEMA, full_text="note")
    writer = table.writer("single", CONFIG)
    writer.put(LARGE)
    refused(writer.flush_memtable, full, StoreFull, Poisoned, saying="No space" if os.path.ismount(disk) else "large")
    with contextlib.suppress(HeadgateError):
        writer.close()
    assert open_table(table.uri).scan().read_all().num_rows == 3000
    with table.writer("single", CONFIG) as again:
        again.flush_memtable()
    assert open_table(table.uri).scan().read_all().num_rows == 3000
    closing(table)


# -- a directory that may not be written to ----------------------------------------


def plainly(path: Path, call: str) -> str:
    """What a process prints that calls this with a table, without root's power to write everywhere."""
    code = (
        "from tests.faults.plain_user import become; become()\n"
        "import headgate, pyarrow as pa\n"
        "from headgate.errors import HeadgateError\n"
        f"uri = {str(path)!r}\n"
        f"try:\n    {call}\nexcept HeadgateError as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.fixture
def forbidden(tmp_path: Path) -> tuple[Table, Without]:
    """A table, and a time in which its directories are read-only."""
    table, _ = streamed(tmp_path / "t")

    @contextlib.contextmanager
    def without() -> Iterator[None]:
        paths = [tmp_path / "t", *(tmp_path / "t").rglob("*")]
        modes = {path: path.stat().st_mode for path in paths}
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)

    return table, without


def test_a_read_only_directory_is_read_and_every_write_is_refused(
    forbidden: tuple[Table, Without], tmp_path: Path
) -> None:
    table, without = forbidden
    wanted = content(table)
    calls = {
        f"headgate.open_table(uri).writer({DIRECT!r})": "PermissionDenied",
        "headgate.open_table(uri).checkpoint()": "PermissionDenied",
        "headgate.open_table(uri).flush()": "PermissionDenied",
        "headgate.create_table(uri + '/inside', pa.schema({'id': 'int64'}))": "PermissionDenied",
        "print(headgate.open_table(uri).scan().read_all().num_rows)": str(sum(wanted[0].values())),
    }
    with without():
        for call, said in calls.items():
            told = plainly(tmp_path / "t", call)
            assert told.startswith(said), (call, told)
            assert "Permission denied" in told or said.isdigit()
    assert content(table) == wanted
    closing(table)
    with table.writer(DIRECT, WAL_ONLY) as writer:
        writer.put(rows(-4))


def test_a_directory_that_may_not_even_be_read_is_told(forbidden: tuple[Table, Without], tmp_path: Path) -> None:
    table, without = forbidden
    with without():
        (tmp_path / "t" / "_mem_wal").chmod(0o000)
        assert plainly(tmp_path / "t", "headgate.open_table(uri).scan()").startswith("PermissionDenied")
    closing(table)


# -- no file descriptors -------------------------------------------------------------


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """While it lasts, no file can be opened, whatever another thread or the garbage collector closes meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("what", ["everything_fails_clearly", "a_writer_stops"])
def test_without_file_descriptors_it_is_told_and_works_again(tmp_path: Path, what: str) -> None:
    """In a process of its own: threads that other tests left behind need files as well."""
    call = f"import pathlib, tests.faults.test_resources as tests; tests.{what}(pathlib.Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]


def everything_fails_clearly(tmp_path: Path) -> None:
    table, _ = streamed(tmp_path / "t", full_text=("note",))
    wanted = content(table)
    # Once while there are descriptors: what a library opens when it is first used it keeps.
    other, _ = streamed(tmp_path / "other", full_text=("note",))
    for call in operations(other, tmp_path / "others").values():
        call()
    for name, call in operations(table, tmp_path).items():
        try:
            refused(call, no_descriptors, StoreFull, saying="Too many open files")
        except BaseException as error:
            raise AssertionError(name) from error
        assert content(open_table(table.uri)) == wanted, name
    closing(table)
    for call in operations(table, tmp_path).values():
        call()
    assert content(open_table(str(tmp_path / "clone")))[0] == wanted[0]
    closing(table)


def a_writer_stops(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA)
    writer = table.writer("single", WAL_ONLY)
    writer.put(rows(1))
    refused(lambda: writer.put(rows(2)).wait(), no_descriptors, Poisoned, saying="Too many open files")
    with contextlib.suppress(HeadgateError):
        writer.close()
    refused(
        lambda: ShardWriter.open(table.home, table.shard("single").id, WAL_ONLY),
        no_descriptors,
        StoreFull,
        saying="Too many open files",
    )
    with table.writer("single", WAL_ONLY) as again:
        again.put(rows(3))
    assert sorted(open_table(table.uri).scan(columns=["id"]).read_all()["id"].to_pylist()) == [1, 3]
    closing(table)
