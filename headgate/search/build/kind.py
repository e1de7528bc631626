"""What is different from one kind of index to another; all the rest of building is the same for texts and vectors."""

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
        """The parameters to build with. Raises InvalidInput if they cannot be, or are others than the index has."""

    def begun(
        self, store: ObjectStore, column: str, look: IndexLook, chosen: Mapping[str, Any], rebuild: bool
    ) -> IndexLook:
        """The index once what must be there before the first segment is."""

    def plan(
        self, store: ObjectStore, column: str, look: IndexLook, limits: Limits, renew: bool = False
    ) -> Round | Merge | None:
        """What to do next, with `renew` every segment anew. None: nothing."""

    def jobs(
        self, store: ObjectStore, column: str, look: IndexLook, todo: Round | Merge, parameters: Mapping[str, Any]
    ) -> tuple[list[Job], Round]:
        """The jobs of a round, and the round as it is then."""

    def run(self, jobs: Sequence[Job], runner: Runner, report: Report) -> Sequence[Segment]:
        """Run the jobs of a round."""

    def differ(self, one: Segment, other: Segment) -> str | None:
        """What keeps two new segments from standing in one index; None: nothing."""

    def differ_beside(self, store: ObjectStore, look: IndexLook, staying: SegmentLook, added: Segment) -> str | None:
        """The same of a segment that is there and a new one."""

    def inside(self, store: ObjectStore, segment: SegmentLook) -> tuple[int | None, int | None]:
        """How many texts or vectors a segment has, and of how many parts it is made; None where nothing says so."""

    def waits(self, store: ObjectStore, column: str, look: IndexLook) -> str:
        """Why there is no index yet, as a sentence; empty where there is one, or is to be."""
