"""Whole tables on S3: streams, checkpoints, clones, garbage collection, compaction, recovery's check, search."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from headgate.connectors.objects import open_store
from headgate.errors import HeadgateError
from headgate.search.build.build import build_index
from headgate.search.build.jobs import build
from headgate.search.finalize.finalize import finalize
from headgate.search.finalize.segment import IndexFolder, together
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.clones import DIRECT, WAL_ONLY, content, faulty, ids, open_stream, rows, run_batch, streamed, through
from tests.support.indexes import NAME, job, texts
from tests.support.life import ranges_of
from tests.support.stores import Crash

pytestmark = [pytest.mark.s3, pytest.mark.real_s3]

AT_ONCE = timedelta(0)


def clean(table: Table, options: dict[str, str]) -> None:
    report = fsck(table.uri, storage_options=options)
    assert [str(one) for one in report.findings] == []


def test_checkpoints_clones_compaction_and_collection_keep_every_row_once(
    s3_options: dict[str, str], make_bucket: Callable[[], str]
) -> None:
    here, away = make_bucket(), make_bucket()
    table, driver = streamed(f"s3://{here}/t", storage_options=s3_options, full_text=("note",))
    wanted = content(table)
    table.checkpoint(name="then")
    shallow = table.clone(f"s3://{here}/shallow", names=[DIRECT])
    deep = table.clone(f"s3://{away}/deep", deep=True, wal_uri=f"s3://{away}/wal", names=[DIRECT])
    assert content(shallow) == content(deep) == wanted
    table.checkpoint("all", name="all")
    with pytest.raises(AssertionError, match="'class': 'Fenced'"):  # as the tasks of its batch told it
        run_batch(driver, 3, ranges_of(3))
    assert content(table) == wanted
    table.compact()
    assert content(open_table(table.uri, storage_options=s3_options)) == wanted
    collected = table.collect_garbage(min_age=AT_ONCE, apply=True)
    assert collected.found
    for one in (table, shallow, deep, open_table(table.uri, storage_options=s3_options, checkpoint="then")):
        assert content(one) == wanted
    for one in (table, shallow, deep):
        clean(one, s3_options)
    # The stream goes on, in the table and in its clones, each by itself.
    for one in (table, shallow, deep):
        run_batch(open_stream(open_table(one.uri, storage_options=s3_options)), 3, ranges_of(3))
    assert content(open_table(table.uri, storage_options=s3_options)) == content(
        open_table(deep.uri, storage_options=s3_options)
    )
    assert content(open_table(table.uri, storage_options=s3_options))[0] > wanted[0]
    assert Counter(ids(table)).most_common(1)[0][1] == 1
    assert sorted(table.search("direct", k=10)["id"].to_pylist()) == [-3, -2, -1]


def test_a_collection_that_dies_after_any_operation_costs_no_row(s3_options: dict[str, str], bucket: str) -> None:
    table, _ = streamed(f"s3://{bucket}/t", storage_options=s3_options)
    table.checkpoint("all", name="all")
    wanted = content(table)
    for crash_after in (3, 9, 20, 40):
        dying = through(table, faulty(open_store(table.uri, s3_options), crash_after=crash_after))
        with pytest.raises(Crash):
            dying.collect_garbage(min_age=AT_ONCE, apply=True)
        assert content(open_table(table.uri, storage_options=s3_options)) == wanted
    table.collect_garbage(min_age=AT_ONCE, apply=True)
    assert content(open_table(table.uri, storage_options=s3_options)) == wanted
    with table.writer(DIRECT, WAL_ONLY) as writer:
        writer.put(rows(-4))
    clean(table, s3_options)


@pytest.mark.parametrize("every", [41, pytest.param(7, marks=pytest.mark.deep)])
def test_a_checkpoint_a_compaction_or_a_clone_that_dies_after_any_operation_is_completed_by_the_next(
    s3_options: dict[str, str], bucket: str, every: int
) -> None:
    table, _ = streamed(f"s3://{bucket}/t", storage_options=s3_options)
    wanted = content(table)

    def dies(what: Callable[[Table], object]) -> int:
        """Do it again and again, each time for longer, until it is done. How often it died."""
        for crash_after in range(1, 100_000, every):
            store = faulty(open_store(table.uri, s3_options), crash_after=crash_after)
            try:
                what(through(table, store))
            except (Crash, HeadgateError):
                assert store.crashed, "only the crash may stop it"
                assert content(open_table(table.uri, storage_options=s3_options)) == wanted
            else:
                return crash_after
        raise AssertionError("it never came to an end")

    assert dies(lambda one: one.checkpoint("all")) > every
    assert dies(lambda one: one.compact()) > every
    assert dies(lambda one: one.clone(f"s3://{bucket}/clone", deep=True, names=[DIRECT])) > every
    for left in table.checkpoints():  # one that died between its record and its tag is a finding, and this its remedy
        table.drop_checkpoint(left.checkpoint.name)
    for one in (table, open_table(f"s3://{bucket}/clone", storage_options=s3_options)):
        assert content(one) == wanted
        clean(one, s3_options)


@pytest.mark.usefixtures("s3_environment")
def test_killed_finalizers_of_an_index_leave_what_the_next_one_finishes(bucket: str, tmp_path: Path) -> None:
    uri = f"s3://{bucket}/t"
    lance.write_dataset(texts(320), uri, max_rows_per_file=40)
    index_id = uuid.uuid4()
    folder = IndexFolder(open_store(uri), index_id)
    built = together(build(folder, job(uri, [fragment])) for fragment in range(8))
    (tmp_path / "built").write_bytes(pickle.dumps(built))
    for pause in (0.0, 0.01, 0.03):
        command = [sys.executable, "-m", "tests.support.finalizing", uri, str(index_id), str(tmp_path / "built")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begin\n"
            time.sleep(pause)
            process.send_signal(signal.SIGKILL)
    finalize(folder, built)
    finalize(folder, built)
    left = [info.key for info in open_store(uri).list(f"_indices/{index_id}/") if "staging" in info.key]
    assert left == []
    assert build_index(open_store(uri), "note", NAME).rows == 320
    alone = lance.write_dataset(texts(320), str(tmp_path / "alone"))
    alone.create_scalar_index("note", "INVERTED")
    for query in ("w1", "w2 w3"):
        found = [one.to_table(full_text_query=query)["id"].to_pylist() for one in (lance.dataset(uri), alone)]
        assert sorted(found[0]) == sorted(found[1])
