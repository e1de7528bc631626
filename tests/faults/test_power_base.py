"""A power cut after a promise: what was acknowledged is there, whoever wrote the base."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

from headgate.checkpoints.jobs.columns import stream_schema
from headgate.cli import main
from headgate.connectors.lance.base.damage import settle_base
from headgate.connectors.lance.base.files import manifests
from headgate.connectors.lance.base.manifest import version_files
from headgate.connectors.lance.base.synced import sync_base
from headgate.errors import DataLoss, InvalidInput, StoreError
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.faults.power import READINGS, Recorder, ext4, why_no_ext4
from tests.support.compactions import claimed, make_table, one_round, open_writer, rows, scanned


def made(path: Path, kind: str = "key") -> Table:
    table = make_table(path, kind)
    with open_writer(table) as writer:
        writer.put(rows((1, "a"), (2, "a")))
    return table


@pytest.mark.parametrize("reading", READINGS)
def test_a_created_table_and_its_durable_put_survive(tmp_path: Path, reading: str) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    with Recorder(root, every=False) as disk:
        made(root / "t")
        cut = disk.cut()
    cut.write(root, reading)
    assert scanned(open_table(str(root / "t"))) == [(1, "a"), (2, "a")]


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_a_clone_survives(tmp_path: Path, deep: bool) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    with Recorder(root, every=False) as disk:
        table = made(root / "t")
        lance.write_dataset(rows((9, "base")), table.uri, mode="append")
        clone = table.clone(str(root / "c"), deep=deep)
        shown = scanned(clone)
        cut = disk.cut()
    cut.write(root, "nothing")
    assert scanned(open_table(str(root / "c"))) == shown == [(1, "a"), (2, "a"), (9, "base")]


@pytest.mark.parametrize("kind", ["key", "no key"])
def test_what_native_wrote_is_on_disk_before_anything_goes_because_the_base_has_it(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    with Recorder(root, every=False) as disk:
        table = made(root / "t", kind)
        table.flush()
        one_round(claimed(table))
        with open_writer(table) as writer:
            writer.put(rows((3, "b")))
        table.flush()
        lance.dataset(table.uri).delete("id = 1")
        one_round(claimed(table))
        table.collect_garbage(min_age=timedelta(0), apply=True)
        cut = disk.cut()
    cut.write(root, "names")
    assert scanned(open_table(str(root / "t"))) == [(2, "a"), (3, "b")]


@pytest.mark.skipif(why_no_ext4() is not None, reason=str(why_no_ext4()))
def test_a_real_ext4_shows_the_same(tmp_path: Path) -> None:
    with ext4(tmp_path) as disk:
        table = made(disk.mount / "t")
        table.flush()
        table.compact()
        clone = table.clone(str(disk.mount / "shallow"))
        copy = table.clone(str(disk.mount / "deep"), deep=True)
        disk.lose_power()
        for uri in (table.uri, clone.uri, copy.uri):
            assert scanned(open_table(uri)) == [(1, "a"), (2, "a")], uri
        shutil.rmtree(disk.mount / "deep")


def test_columns_that_a_stream_writes_by_are_on_disk_whoever_added_them(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    with Recorder(root, every=False) as disk:
        table = made(root / "t")
        lance.dataset(table.uri).add_columns(pa.field("more", pa.int64()))
        assert "more" in stream_schema(table.home).logical.names
        cut = disk.cut()
    cut.write(root, "names")
    assert "more" in open_table(str(root / "t")).schema.names


# -- versions that a cut damaged ---------------------------------------------------------------


def newest(table: Table) -> Path:
    return min((Path(table.uri) / "_versions").glob("*.manifest"))


def test_a_manifest_that_the_cut_emptied_is_set_aside_by_the_next_writer(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    lance.write_dataset(rows((9, "native")), table.uri, mode="append")
    newest(table).write_bytes(b"")
    assert scanned(open_table(table.uri)) == [(1, "a"), (2, "a")], "readers use the version before"
    assert [one.code for one in fsck(table.uri).findings] == ["base-version-unreadable"]
    with open_writer(table) as writer:
        writer.put(rows((3, "b")))
    assert fsck(table.uri).findings == ()
    assert [path.stat().st_size for path in set_aside_of(table)] == [0], "kept"
    lance.write_dataset(rows((9, "native")), table.uri, mode="append")
    assert scanned(open_table(table.uri)) == [(1, "a"), (2, "a"), (3, "b"), (9, "native")]


def set_aside_of(table: Table) -> list[Path]:
    return sorted((Path(table.uri) / f"_headgate/{table.table_id}/set_aside").glob("*"))


def test_a_version_whose_files_the_cut_emptied_is_set_aside_too(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    lance.write_dataset(rows((9, "native")), table.uri, mode="append")
    for path in (Path(table.uri) / "data").iterdir():
        path.write_bytes(b"")
    assert [one.code for one in fsck(table.uri).findings] == ["base-version-torn"]
    with pytest.raises(StoreError):
        scanned(open_table(table.uri))
    (gone,) = settle_base(table.home.store)
    assert gone.kind == "torn"
    assert scanned(open_table(table.uri)) == [(1, "a"), (2, "a")]
    assert settle_base(table.home.store) == (), "twice equals once"


def test_what_was_on_disk_before_is_never_set_aside(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    lance.write_dataset(rows((9, "native")), table.uri, mode="append")
    sync_base(table.home.store)
    newest(table).write_bytes(b"")
    assert settle_base_fails(table)
    with pytest.raises(StoreError):
        open_table(table.uri)
    assert [one.code for one in fsck(table.uri).findings if one.is_error] == ["base-damaged"]
    assert set_aside_of(table) == []


def settle_base_fails(table: Table) -> bool:
    with pytest.raises(DataLoss):
        sync_base(table.home.store)
    return settle_base(table.home.store) == ()


def test_without_any_mark_nothing_is_set_aside(tmp_path: Path) -> None:
    """A table of an older release: nobody knows what was deleted because of which version."""
    table = made(tmp_path / "t")
    shutil.rmtree(Path(table.uri) / f"_headgate/{table.table_id}/synced")
    newest(table).write_bytes(b"")
    assert settle_base(table.home.store) == ()
    assert set_aside_of(table) == []


def test_a_collection_deletes_nothing_while_the_base_has_lost_rows(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    table.flush()
    one_round(claimed(table))
    shutil.rmtree(Path(table.uri) / f"_headgate/{table.table_id}/synced")
    next((Path(table.uri) / "data").iterdir()).unlink()
    done = table.collect_garbage(min_age=timedelta(0), apply=True)
    assert done.found == ()
    assert any("is missing" in why for why in done.kept)


def test_recover_mends_the_base_without_a_spark_checkpoint(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    lance.write_dataset(rows((9, "native")), table.uri, mode="append")
    newest(table).write_bytes(b"")
    told = CliRunner().invoke(main, ["recover", table.uri, "--output", "json"])
    assert "run this with --apply" in json.loads(told.stdout)["base"][0]["next"]
    assert set_aside_of(table) == []
    CliRunner().invoke(main, ["recover", table.uri, "--apply"], catch_exceptions=False)
    assert len(set_aside_of(table)) == 1
    assert scanned(open_table(table.uri)) == [(1, "a"), (2, "a")]


# -- what all of this takes from Lance -------------------------------------------------------


def test_a_version_is_made_of_the_files_that_lance_names(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": range(50), "s": ["a b"] * 50}), str(tmp_path / "t"))
    dataset.create_scalar_index("s", "INVERTED", name="s_idx")
    dataset.delete("id = 3")
    for version, path in manifests(str(tmp_path / "t")).items():
        found = version_files(str(tmp_path / "t"), path)
        told = [one for one in dataset.tracked_files().read_all().to_pylist() if one["version"] == version]
        named = {f"{one['base_uri']}/{one['path']}" for one in told if one["type"] != "manifest"}
        assert {*found.files, found.transaction} == named
        assert all(size is None or Path(file).stat().st_size == size for file, size in found.files.items())
    assert {Path(file).parent.name for file in found.files} == {"data"}, "the first version, which comes last"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_lance_never_syncs(tmp_path: Path) -> None:
    """The day it does, `connectors.lance.base.synced` has less to do."""
    code = (
        "import lance, pyarrow as pa; rows = pa.table({'id': [1, 2]});"
        f"data = lance.write_dataset(rows, {str(tmp_path / 't')!r}); data.delete('id = 1');"
        f"data.deep_clone({str(tmp_path / 'c')!r}, data.version)"
    )
    trace = tmp_path / "trace"
    traced = "trace=fsync,fdatasync,syncfs,sync,sync_file_range,linkat"
    command = ["strace", "-f", "--seccomp-bpf", "-e", traced, "-o", str(trace), sys.executable, "-c", code]
    subprocess.run(command, check=True, capture_output=True)
    calls = [line.split(maxsplit=1)[1].partition("(")[0] for line in trace.read_text().splitlines()]
    assert "linkat" in calls, "the commits are in the trace"
    assert not [call for call in calls if "sync" in call]


def test_creating_a_table_over_somebody_elses_dataset_changes_nothing_of_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "theirs")
    lance.write_dataset(pa.table({"id": [1]}), uri).create_scalar_index("id", "BTREE")
    lance.write_dataset(pa.table({"id": [2]}), uri, mode="append")
    shutil.rmtree(next((tmp_path / "theirs" / "_indices").iterdir()))
    version = lance.dataset(uri).version
    with pytest.raises(InvalidInput, match="headgate did not create"):
        create_table(uri, pa.schema([("id", pa.int64())]))
    assert lance.dataset(uri).version == version
    assert lance.dataset(uri).to_table()["id"].to_pylist() == [1, 2]


def test_a_lost_file_of_an_index_takes_no_row_with_it(tmp_path: Path) -> None:
    """Whoever lost it, and whatever came after the index: rows count, an index can be built again."""
    table = made(tmp_path / "t")
    before = set((tmp_path / "t" / "_indices").iterdir()) if (tmp_path / "t" / "_indices").exists() else set()
    lance.write_dataset(rows((8, "base")), table.uri, mode="append")
    lance.dataset(table.uri).create_scalar_index("id", "BTREE", name="mine")
    lance.write_dataset(rows((9, "base")), table.uri, mode="append")
    for folder in set((tmp_path / "t" / "_indices").iterdir()) - before:
        shutil.rmtree(folder)
    settle_base(table.home.store)
    assert scanned(open_table(table.uri)) == [(1, "a"), (2, "a"), (8, "base"), (9, "base")]
