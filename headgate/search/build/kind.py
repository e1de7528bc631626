"""The interface for what differs between kinds of index; the rest of a build is the same for texts and vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headgate.connectors.lance.index import IndexLook, SegmentLook
from headgate.connectors.objects import ObjectStore
from headgate.search.build.jobs import Job, Runner
from headgate.search.build.plan import Limits, Merge, Round
from headgate.search.finalize.finalize import Report
from headgate.search.finalize.segment import Segment


class Kind(Protocol):
    """How a column is indexed. Picklable."""

    def look(self, store: ObjectStore, column: str, name: str) -> IndexLook:
        """The column's index of this kind as it is now, with all of its parameters."""

    def chosen(
        self, store: ObjectStore, column: str, look: IndexLook, given: Mapping[str, Any] | None, rebuild: bool
    ) -> Mapping[str, Any]:
        """The parameters to build with. Raises InvalidInput if they are invalid or differ from those of the index."""

    def begun(
        self, store: ObjectStore, column: str, look: IndexLook, chosen: Mapping[str, Any], rebuild: bool
    ) -> IndexLook:
        """Prepare what must exist before the first segment. Returns the index as it is then."""

    def plan(
        self, store: ObjectStore, column: str, look: IndexLook, limits: Limits, renew: bool = False
    ) -> Round | Merge | None:
        """What to do next; with `renew` build every segment again. None if there is nothing to do."""

    def jobs(
        self, store: ObjectStore, column: str, look: IndexLook, todo: Round | Merge, parameters: Mapping[str, Any]
    ) -> tuple[list[Job], Round]:
        """The jobs of a round, and the round that they carry out."""

    def run(self, jobs: Sequence[Job], runner: Runner, report: Report) -> Sequence[Segment]:
        """Run the jobs of a round."""

    def differ(self, one: Segment, other: Segment) -> str | None:
        """The difference because of which two new segments must not be in one index; None if there is none."""

    def differ_beside(self, store: ObjectStore, look: IndexLook, staying: SegmentLook, added: Segment) -> str | None:
        """The same for an existing segment and a new one."""

    def inside(self, store: ObjectStore, segment: SegmentLook) -> tuple[int | None, int | None]:
        """The number of texts or vectors in a segment, and of its parts or partitions; None if unknown."""

    def waits(self, store: ObjectStore, column: str, look: IndexLook) -> str:
        """Why there is no index yet, as text; empty if there is one, or nothing prevents it."""
