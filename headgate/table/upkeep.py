"""Maintenance of a table without a stream; a running stream does it automatically."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from headgate.checkpoints.gc.collect import MIN_AGE, collect
from headgate.checkpoints.gc.report import Collection
from headgate.checkpoints.jobs.columns import current_home
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.checkpoints.offline.checkpoint import ToFlush, flush_stopped, to_flush
from headgate.checkpoints.offline.compact import Compacted, compact_stopped
from headgate.errors import HeadgateError
from headgate.progress import Progress, shown
from headgate.search.build.build import IndexBuild, build_index
from headgate.search.build.plan import Limits
from headgate.search.build.spark import limits_on, on_spark
from headgate.search.build.upkeep import index_base, kind_of
from headgate.search.finalize.finalize import Report
from headgate.shards.home.base import index_name
from headgate.shards.shard import TableHome
from headgate.steps import step


class Upkeep:
    """Flush, compaction, garbage collection and indexing by hand."""

    home: TableHome

    @abstractmethod
    def shard_ids(self) -> frozenset[UUID]:
        """Every shard that has an object. One LIST."""

    @abstractmethod
    def close(self) -> None:
        """Close the table's own writers."""

    @abstractmethod
    def _shard_names(self, names: Sequence[str] = ()) -> dict[UUID, str]: ...

    @abstractmethod
    def _check_now(self, what: str) -> None: ...

    def flush(self) -> str:
        """Flush all rows in the WALs of a stopped table to SSTables: IT FENCES EVERY WRITER AND STREAM.

        The result says what was not possible: WAL-only streams have no SSTables. Raises as `checkpoint` of scope "all"
        does.
        """
        self._check_now("be flushed")
        self.close()
        return flush_stopped(current_home(self.home), self.shard_ids(), names=self._shard_names())

    def to_flush(self) -> list[ToFlush]:
        """The shards that `flush` would open, the contents of their WALs, and the writers it would fence. Writes
        nothing.
        """
        return to_flush(self.home, self.shard_ids(), self._shard_names())

    def compact(
        self,
        *,
        limits: CompactLimits = CompactLimits(),  # noqa: B008
        policy: BasePolicy = BasePolicy(),  # noqa: B008
        progress: Progress | None = None,
    ) -> Compacted:
        """Merge all SSTables into the base, clean it up (merge small fragments, remove old versions by policy), and
        extend its indexes to new rows, in this process.

        For stopped tables (a running stream does it automatically): IT FENCES THE WRITERS AND STREAMS of every shard
        with SSTables. Rows that are only in WALs stay there; call `flush` first. After a crash, call it again. See
        `compact_stopped`, `index_base`.
        """
        self._check_now("be compacted")
        self.close()
        with shown(progress) as report:
            done = compact_stopped(
                self.home,
                self.shard_ids(),
                limits=limits,
                policy=policy,
                names=self._shard_names(),
                progress=partial(report, "compacting"),
            )
            step("index")
            return replace(done, indexed=self._indexed(partial(_of_index, report)))

    def _indexed(self, report: Report) -> int:
        try:
            return index_base(self.home, report=report).segments
        except HeadgateError as error:
            compacted = "the SSTables were merged, but the base's indexes are incomplete"
            error.with_context(
                compacted=compacted, advice="compact again, or build the index with `headgate index build`"
            )
            raise

    def collect_garbage(
        self,
        *,
        min_age: timedelta = MIN_AGE,
        apply: bool = False,
        progress: Progress | None = None,
    ) -> Collection:
        """Find files that no reader, checkpoint, fence or recovery can need any more, and delete them with `apply`. See
        `collect`.

        A `min_age` below MIN_AGE may delete files that a reader without a checkpoint still needs.
        """
        with shown(progress) as report:
            deleted = partial(report, "collecting")
            return collect(self.home, self.shard_ids(), min_age=min_age, apply=apply, progress=deleted)

    def build_index(
        self,
        column: str,
        *,
        spark: Any = None,
        parameters: Mapping[str, Any] | None = None,
        rebuild: bool = False,
        limits: Limits | None = None,
        progress: Progress | None = None,
    ) -> IndexBuild:
        """Extend the column's index to all rows of the base, in this process or on the executors of a SparkSession.

        A vector column gets a vector index, any other a full-text index. Rows that are covered already are skipped.
        Vectors get an index once enough rows of the base have one; the result's `note` says so. See `build_index`.
        """
        self._check_now("be indexed")
        runner = None
        if spark is not None:
            runner, limits = on_spark(spark, self.home.uri), limits or limits_on(spark)
        with shown(progress, column) as report:
            return build_index(
                self.home.store,
                column,
                index_name(column),
                kind=kind_of(self.home, column),
                parameters=parameters,
                rebuild=rebuild,
                runner=runner,
                limits=limits,
                report=report,
            )


def _of_index(report: Progress, stage: str, done: int, total: int) -> None:
    report(f"index: {stage}", done, total)
