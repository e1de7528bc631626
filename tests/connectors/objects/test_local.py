from __future__ import annotations

import errno
import gc
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate.connectors.objects import open_store
from headgate.connectors.objects.local import LocalStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import AlreadyExists, InvalidInput, NotFound, PermissionDenied, StoreFull, Transient
from tests.connectors.objects.suite import ObjectStoreSuite


class NamedTemporaryStore(LocalStore):
    """As on a file system without nameless files."""

    nameless_files = False


BOTH = pytest.mark.parametrize("kind", [LocalStore, NamedTemporaryStore], ids=["nameless", "named"])


@pytest.mark.skipif(not LocalStore.nameless_files, reason="this system has no O_TMPFILE")
class TestLocalStoreWithNamelessFiles(ObjectStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(str(tmp_path / "one/root"))

    @pytest.fixture
    def other(self, tmp_path: Path) -> ObjectStore:
        return LocalStore((tmp_path / "another root").as_uri())


class TestLocalStoreWithNamedFiles(ObjectStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return NamedTemporaryStore(str(tmp_path / "one/root"))

    @pytest.fixture
    def other(self, tmp_path: Path) -> ObjectStore:
        return NamedTemporaryStore(str(tmp_path / "other"))


# -- durability: write, sync, link, sync of the directory, and only then the answer -------------------

TRACED = """
from tests.connectors.objects.test_local import LocalStore, NamedTemporaryStore
import os
store = {kind}({root!r})
store.put_if_absent("wal/0", b"made the folders")
os.write(2, b"<begin>")
store.put_next("wal/1", [b"first", b"second"])
os.write(2, b"<acknowledged>")
"""


@BOTH
@pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed; the next test checks the same order"
)
def test_a_system_call_trace_shows_the_durable_order(kind: type[LocalStore], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    code = TRACED.format(kind=kind.__name__, root=str(tmp_path / "root"))
    calls = "trace=openat,write,writev,fsync,fdatasync,link,linkat,rename,close"
    subprocess.run(
        ["strace", "-f", "-y", "-e", calls, "-o", str(trace), sys.executable, "-c", code],
        check=True,
        capture_output=True,
    )
    lines = trace.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if "<begin>" in line)
    end = next(i for i, line in enumerate(lines) if "<acknowledged>" in line)
    steps = [_step(line) for line in lines[begin + 1 : end]]
    assert [step for step in steps if step] == ["write", "fsync file", "link", "fsync directory"], lines[
        begin : end + 1
    ]


def _step(line: str) -> str | None:
    call = line.split(maxsplit=1)[1]
    if call.startswith("writev("):
        return "write"
    if call.startswith("linkat(") or call.startswith("link("):
        return "link"
    if call.startswith(("fsync(", "fdatasync(")):
        return "fsync directory" if "/wal>" in call else "fsync file"
    return None


@BOTH
def test_the_calls_are_made_in_the_durable_order(
    kind: type[LocalStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kind(str(tmp_path))
    store.put_if_absent("wal/0", b"made the folders")
    calls: list[str] = []

    def recorded(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            is_folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")
            calls.append("fsync directory" if is_folder else name)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("writev", "fsync", "link", "rename"):
        recorded(name)
    store.put_next("wal/1", [b"first", b"second"])
    store.put_overwrite("wal/hint", b"1")
    assert calls == ["writev", "fsync", "link", "fsync directory", "writev", "fsync", "rename", "fsync directory"]


@BOTH
def test_new_folders_are_synced_into_their_parents(
    kind: type[LocalStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "root/a").mkdir(parents=True)  # made by somebody who did not sync
    kind(str(tmp_path / "root")).put_if_absent("a/b/k", b"")
    folders = [str(tmp_path / name) for name in ("", "root", "root/a", "root/a/b")]
    assert [path for path in synced if os.path.isdir(path)] == [str(Path(path)) for path in folders]


def test_an_object_that_is_in_the_way_is_made_durable_before_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory sync fails after the link; the retry meets its own object, which must then be safe."""
    store = LocalStore(str(tmp_path))
    store.put_if_absent("wal/0", b"")
    real, synced = os.fsync, []

    def failing(file: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{file}"):
            synced.append(file)
            if len(synced) == 1:
                raise OSError(errno.EIO, "disk")
        real(file)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(Transient):
        store.put_if_absent("wal/1", b"mine")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("wal/1", b"mine")
    assert len(synced) == 2


# -- nothing torn, nothing left -----------------------------------------------------------------------


@BOTH
def test_a_put_leaves_no_temporary_file_and_none_in_the_folder(kind: type[LocalStore], tmp_path: Path) -> None:
    store = kind(str(tmp_path))
    store.put_if_absent("wal/1", b"x")
    store.put_overwrite("wal/2", b"x")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("wal/1", b"y")
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["wal/1", "wal/2"]


def test_temporary_files_are_no_objects(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    (tmp_path / "_headgate/tmp").mkdir(parents=True)
    (tmp_path / "_headgate/tmp/stray").write_bytes(b"half")
    (tmp_path / "_headgate/tmpfile").write_bytes(b"whole")
    assert [info.key for info in store.list("")] == ["_headgate/tmpfile"]
    assert list(store.list("_headgate/tmp/")) == []
    assert list(store.list_folders("_headgate/")) == []
    with pytest.raises(InvalidInput):
        store.put_if_absent("_headgate/tmp/mine", b"")


@BOTH
def test_the_kernel_may_take_a_few_bytes_at_a_time(
    kind: type[LocalStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "writev", lambda file, parts: os.write(file, b"".join(parts)[:7]))
    store = kind(str(tmp_path))
    store.put_if_absent("k", [b"abc", b"", b"defghijkl", b"m" * 20])
    assert bytes(store.get("k")) == b"abcdefghijkl" + b"m" * 20


@contextmanager
def limit(which: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


@BOTH
@pytest.mark.parametrize("verb", ["put_if_absent", "put_overwrite"])
def test_a_full_store_stores_nothing(kind: type[LocalStore], verb: str, tmp_path: Path) -> None:
    store = kind(str(tmp_path))
    with limit(resource.RLIMIT_FSIZE, 1000), pytest.raises(StoreFull) as caught:
        getattr(store, verb)("wal/1", [b"x" * 900, b"y" * 900])
    assert isinstance(caught.value.__cause__, OSError)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    store.put_if_absent("wal/1", b"again")


@BOTH
def test_too_many_open_files_is_a_full_store(kind: type[LocalStore], tmp_path: Path) -> None:
    store = kind(str(tmp_path))
    store.put_if_absent("wal/0", b"")
    lowest_free = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest_free)
    for spare in (0, 1):
        with limit(resource.RLIMIT_NOFILE, lowest_free + spare), pytest.raises(StoreFull):
            store.put_if_absent("wal/1", b"")
    store.put_if_absent("wal/1", b"")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EACCES, PermissionDenied),
        (errno.EROFS, PermissionDenied),
        (errno.EIO, Transient),
        (errno.ESTALE, Transient),
    ],
    ids=lambda value: errno.errorcode.get(value) if isinstance(value, int) else None,
)
def test_what_the_disk_says_becomes_a_typed_error(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))

    def failing(file: int, parts: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "writev", failing)
    with pytest.raises(kind) as caught:
        store.put_if_absent("k", b"body")
    assert caught.value.__cause__.errno == number  # type: ignore[union-attr]
    assert list(store.list("")) == []


@BOTH
def test_no_file_descriptor_is_leaked(kind: type[LocalStore], tmp_path: Path) -> None:
    store = kind(str(tmp_path))
    store.put_if_absent("wal/0", b"x")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for n in range(50):
        store.put_if_absent(f"wal{n % 5}/{n}", b"x")
        store.put_overwrite("wal/hint", b"x")
        store.copy("wal/0", f"copy/{n}")
        store.get("wal/0")
        for wrong in (lambda: store.put_if_absent("wal/0", b"y"), lambda: store.get("no"), lambda: store.get("wal")):
            with pytest.raises((AlreadyExists, NotFound)):
                wrong()
    # Fewer may be there: what earlier tests left open in this process ends when it likes.
    assert len(os.listdir("/proc/self/fd")) <= before


# -- names ----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("verb", ["put_if_absent", "put_overwrite"])
def test_a_file_in_place_of_a_folder_is_invalid(kind: type[LocalStore], verb: str, tmp_path: Path) -> None:
    store = kind(str(tmp_path))
    store.put_if_absent("a", b"file")
    store.put_if_absent("b/c", b"file")
    for key in ("a/b", "a/b/c", "b", "x" * 300):
        with pytest.raises(InvalidInput):
            getattr(store, verb)(key, b"")
    for key in ("a/b", "a/b/c"):
        with pytest.raises(NotFound):
            store.get(key)
        store.delete(key)
    assert bytes(store.get("a")) == b"file"


@BOTH
def test_a_folder_that_vanished_is_made_again(kind: type[LocalStore], tmp_path: Path) -> None:
    store = kind(str(tmp_path / "root"))
    store.put_if_absent("a/b/1", b"")
    shutil.rmtree(tmp_path / "root")
    store.put_if_absent("a/b/1", b"")
    store.put_overwrite("a/b/2", b"")
    assert sorted(info.key for info in store.list("")) == ["a/b/1", "a/b/2"]


@BOTH
@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen"])
def test_a_folder_that_vanished_is_not_made_again_for_the_next_object(
    kind: type[LocalStore], tmp_path: Path, seen: bool
) -> None:
    store = kind(str(tmp_path / "root")).retrying()
    if seen:
        store.put_if_absent("a/b/1", b"")
        store.put_next("a/b/2", b"")
        shutil.rmtree(tmp_path / "root")
    with pytest.raises(NotFound):
        store.put_next("a/b/3", b"")
    assert not (tmp_path / "root").exists()


def test_a_file_system_without_nameless_files_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = os.open, []

    def opened(path: str, flags: int, *args: int, **kwargs: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            refused.append(path)
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", opened)
    store = LocalStore(str(tmp_path))
    for n in range(3):
        store.put_if_absent(str(n), b"x")
    assert len(refused) == 1
    assert len(list(store.list(""))) == 3


def test_a_relative_path_is_fixed_when_the_store_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("table")
    monkeypatch.chdir("/")
    assert store.uri == str(tmp_path / "table")
    assert open_store(f"file://{tmp_path}/a%20b").uri == str(tmp_path / "a b")
    with pytest.raises(InvalidInput):
        open_store("file://host/path")


def test_making_a_store_touches_nothing(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "root"))
    assert list(store.list("")) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("refused", [None, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP], ids=str)
def test_a_copy_is_whole_where_the_kernel_copies_and_where_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    data = os.urandom((1 << 20) + 7)
    calls: list[int] = []
    real = os.copy_file_range

    def some(source: int, target: int, count: int, start: int) -> int:
        """A part at a time, then perhaps not at all."""
        if calls and refused is not None:
            raise OSError(refused, os.strerror(refused))
        calls.append(start)
        return real(source, target, min(count, 300_000), start)

    monkeypatch.setattr(os, "copy_file_range", some)
    store, other = LocalStore(str(tmp_path / "a")), LocalStore(str(tmp_path / "b"))
    store.put_if_absent("x", data)
    store.copy("x", "y", other)
    assert bytes(other.get("y")) == data
    assert len(calls) == (1 if refused else 5)


def test_a_copy_for_which_the_disk_is_full_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "copy_file_range", full)
    store = LocalStore(str(tmp_path))
    store.put_if_absent("x", b"data")
    with pytest.raises(StoreFull):
        store.copy("x", "y")
    assert [*store.list_keys("")] == ["x"]
