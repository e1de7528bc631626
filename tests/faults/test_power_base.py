"""A power cut after a promise: what was acknowledged is there, whoever wrote the base."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import lance
import pytest
from compact_tables import claimed, make_table, one_round, open_writer, rows, scanned
from power import READINGS, Recorder, ext4, why_no_ext4

from headgate.table import Table, open_table


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
@pytest.mark.parametrize("reading", READINGS)
def test_a_clone_survives(tmp_path: Path, reading: str, deep: bool) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    with Recorder(root, every=False) as disk:
        table = made(root / "t")
        lance.write_dataset(rows((9, "base")), table.uri, mode="append")
        clone = table.clone(str(root / "c"), deep=deep)
        shown = scanned(clone)
        cut = disk.cut()
    cut.write(root, reading)
    assert scanned(open_table(str(root / "c"))) == shown == [(1, "a"), (2, "a"), (9, "base")]


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("kind", ["key", "no key"])
def test_what_native_wrote_is_on_disk_before_anything_goes_because_the_base_has_it(
    tmp_path: Path, kind: str, reading: str
) -> None:
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
    cut.write(root, reading)
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
