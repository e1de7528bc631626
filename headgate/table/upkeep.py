"""What keeps a table in order that nobody runs; a running stream does it by itself."""

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
    """Flushing, compacting, collecting and indexing by hand."""

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
        """Let SSTables cover everything in the WALs of a table that nobody runs: IT FENCES EVERY WRITER AND STREAM.

        Says what could not be done: WAL-only streams have no SSTables. Raises as `checkpoint` of scope "all" does.
        """
        self._check_now("be flushed")
        self.close()
        return flush_stopped(current_home(self.home), self.shard_ids(), names=self._shard_names())

    def to_flush(self) -> list[ToFlush]:
        """The shards that `flush` would open, what waits in their WALs, and whom it would fence. Writes nothing."""
        return to_flush(self.home, self.shard_ids(), self._shard_names())

    def compact(
        self,
        *,
        limits: CompactLimits = CompactLimits(),  # noqa: B008
        policy: BasePolicy = BasePolicy(),  # noqa: B008
        progress: Progress | None = None,
    ) -> Compacted:
        """Take all SSTables into the base, tidy it (small fragments merged, old versions removed by policy), and let
        its indexes cover what is new, in this process.

        Of a table that nobody runs (a running stream does it by itself): IT FENCES THE WRITERS AND STREAMS of every
        shard that has SSTables. Rows in the WALs alone stay there; `flush` first. A crash anywhere, then again: the
        same table. See `compact_stopped`, `index_base`.
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
        """What no reader, checkpoint, fence or recovery can need any more; with `apply` it is deleted. See `collect`.

        A `min_age` below MIN_AGE may take what somebody who reads without a checkpoint still needs.
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
        """Cover the base's rows by the column's index, in this process or on the executors of a SparkSession.

        Of a vector column where it is one, else a full-text index. What is covered already is left alone. Vectors get
        an index once enough rows of the base have one; `note` of the result says so. See `build_index`.
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
