"""What a driver and its tasks do for one batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from headgate.checkpoints.log.decisions import BatchDecision, BatchSources, Refusal, Skip
from headgate.checkpoints.log.state import Head
from headgate.errors import InvalidInput
from headgate.shards.manifest.decisions import Slot
from headgate.shards.manifest.model import Manifest
from tests.explorer.exploring import Action, Move
from tests.explorer.slots import found, put, there
from tests.explorer.stream_bounds import Piece, with_task
from tests.explorer.stream_parts import (
    QUERY,
    TOPIC,
    Driver,
    Hold,
    Log,
    Logged,
    Part,
    Planned,
    Task,
    Tasks,
    Wal,
    Written,
    as_batch,
    as_state,
    shard_id,
)


class Batches(Piece):
    """Plan, append with as many attempts as it takes, commit."""

    def actions(self) -> Iterator[Action]:
        for d in self.drivers:
            driver, holds, tasks = f"driver{d}", self.per_shard(f"hold{d}."), self.per_shard(f"tasks{d}.")
            yield Action((driver, *holds, *tasks, *self.per_shard("manifest")), partial(self._plan, d), _is_open)
            yield Action((driver, "log", "opens", *holds, *tasks), partial(self._commit, d), _is_open)
            for s in self.shards:
                if self.bounds.retries:
                    parts = (driver, f"hold{d}.{s}", f"tasks{d}.{s}", "retries")
                    yield Action(parts, partial(self._retry, d, s), _is_open)
                yield Action((f"tasks{d}.{s}", f"wal{s}"), partial(self._append, d, s), bool)

    def _plan(self, d: int, driver: Driver, *rest: Any) -> Iterator[Move]:
        if driver.flight is not None:
            return
        holds, (tasks, manifests) = self.halves(rest)[0], self.halves(self.halves(rest)[1])
        head, plan = as_state(driver.known).head, self.bounds.plans[d]
        last = -1 if head.last is None else head.last.batch_id
        if 0 <= last < len(plan):
            # Spark may be one behind the log: then it asks for the last batch again.
            if not isinstance(self._decision(head, last, plan[last]), Skip):
                return
            if head.ends[TOPIC, 0] != plan[last].until:
                fault = f"invariant 1: Spark goes on at {plan[last].until}, the table ends at {head.ends[TOPIC, 0]}"
                yield Move((f"driver {d} skips batch {last}",), (driver, *rest), fault)
                return
        number = last + 1
        if number >= len(plan):
            return
        if isinstance(refused := self._decision(head, number, plan[number]), Refusal):
            if self.bounds.alike:
                fault = f"a batch that goes on is refused: {refused.error}"
                yield Move((f"driver {d} is refused batch {number}",), (driver, *rest), fault)
            return
        planned = tuple(
            self._next_plan(head, s, hold, manifest) if s in plan[number].shards else None
            for s, (hold, manifest) in enumerate(zip(holds, manifests, strict=True))
        )
        begun = tuple(
            of_shard if at is None else with_task(of_shard, Task(number, 0, hold.epoch, at))
            for at, hold, of_shard in zip(planned, holds, tasks, strict=True)
        )
        label = (f"driver {d} plans batch {number} at", *planned)
        yield Move(label, (driver._replace(flight=(number, planned)), *holds, *begun, *manifests))

    def _next_plan(self, head: Head, s: int, hold: Hold, manifest: Manifest) -> int:
        floor = self.rules.plan_floor(hold.floor, manifest)
        return self.rules.next_plan(head, shard_id(s), barrier=hold.at, advanced=floor)

    def _decision(self, head: Head, number: int, planned: Planned) -> BatchDecision:
        sources = BatchSources((planned.source,))
        return self.rules.decide_batch(head, QUERY, number, sources, lambda topic, partition: 0)

    def _retry(self, d: int, s: int, driver: Driver, hold: Hold, tasks: Tasks, retries: int) -> Iterator[Move]:
        if not retries or driver.flight is None:
            return
        number, planned = driver.flight
        at = planned[s]
        if at is not None and (number, 1) not in [(task.batch, task.attempt) for task in tasks]:
            label = (f"driver {d}, shard {s}, batch {number}: a second attempt",)
            yield Move(label, (driver, hold, with_task(tasks, Task(number, 1, hold.epoch, at)), retries - 1))

    def _append(self, d: int, s: int, tasks: Tasks, wal: Wal) -> Iterator[Move]:
        for task in tasks:
            if task.done:
                continue
            others = tuple(one for one in tasks if one != task)
            who = f"driver {d}, shard {s}, batch {task.batch}, attempt {task.attempt}:"
            entry = Written(task.epoch, d, (task.batch, task.attempt))
            if not there(wal, task.at):
                done = with_task(others, task._replace(done=True))
                yield Move((who, "entry at", task.at), (done, put(wal, task.at, entry)))
            elif self.in_the_way(s, entry, found(wal, task.at)) is Slot.STALE:
                above = with_task(others, task._replace(at=task.at + 1))
                yield Move((who, "steps over", task.at), (above, wal))

    def _commit(self, d: int, driver: Driver, log: Log, opens: int, *rest: Any) -> Iterator[Move]:
        if driver.flight is None:
            return
        holds, tasks = self.halves(rest)
        (number, planned), state = driver.flight, as_state(driver.known)
        if there(log.slots, state.sequence):
            return
        assert state.head.opened is not None
        batch = self.bounds.plans[d][number]
        floors = {shard_id(s): hold.floor for s, hold in enumerate(holds) if hold.floor is not None}
        late = "invariant 3: a predecessor commits after its successor's open has returned"
        for parts in self._answers(number, planned, tasks):
            record = Logged(d, state.sequence + 1, (), state.head.opened.record_id, number, batch, parts)
            listed = ["no rows" if part is None else f"position {part.position}" for part in parts]
            label = (f"driver {d} commits batch {number} as record {record.sequence}:", ", ".join(listed))
            try:
                self.rules.check_listable(state.head, as_batch(record), floors)
            except InvalidInput as error:
                yield Move(label, (driver, log, opens, *rest), f"a driver refuses its own batch: {error}")
                return
            done = driver._replace(known=driver.known.after(record), flight=None)
            changed = Log(put(log.slots, state.sequence, record), (*log.committed, batch))
            # Nobody waits for what the batch's other attempts have written.
            left = tuple(tuple(t for t in one if not (t.done and t.batch == number)) for one in tasks)
            yield Move(label, (done, changed, opens, *holds, *left), late if driver.turn < opens else None)

    def _answers(
        self, number: int, planned: tuple[int | None, ...], tasks: tuple[Tasks, ...]
    ) -> Iterator[tuple[Part | None, ...]]:
        """Which attempts may have answered first."""
        choices: list[list[Part | None]] = []
        for at, of_shard in zip(planned, tasks, strict=True):
            mine = [task for task in of_shard if task.batch == number]
            ready = [task for task in mine if task.done or not self.rules.entries_first]
            choices.append([None] if at is None else [Part(task.at, task.attempt) for task in ready])
        yield from product(*choices)


def _is_open(driver: Driver) -> bool:
    return driver.step == "open"
