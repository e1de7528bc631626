"""Columns that are changed while drivers of a stream come and go (R22): one transition per store operation.

Changers, drivers (one may be a zombie), their tasks, folds with their collections. A batch is a number, its rows have
the columns that its driver knew; columns are a version of the base. Shards are left out: what fences there is in
`stream_model`. A stream that starts while columns change is one whose log is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple
from uuid import UUID

from headgate.checkpoints.log.decisions import OpenOutcome
from headgate.checkpoints.log.records import BatchRecord, LogRecord, OpenRecord, SchemaRecord, ShardPart
from headgate.checkpoints.log.state import Head
from tests.explorer.exploring import Action, Check, Model, Move, Witness
from tests.explorer.rules import Rules
from tests.explorer.slots import Slots, found, put, taken, there, without

PRODUCT = Rules()
SHARD = UUID(int=1)


@dataclass(frozen=True)
class SchemaBounds:
    """How much may happen."""

    name: str
    drivers: int = 2
    batches: int = 2
    changers: int = 1
    folds: int = 0
    lost: int = 0
    """Responses to commits."""
    retries: int = 0
    """Second tasks."""
    extends: int = 0
    """Further open records of a driver."""


class Stored(NamedTuple):
    """A record of the log."""

    kind: str
    """open, schema or batch."""
    by: int
    batch: int = 0
    attempt: int = 0
    columns: int = 0


Log = Slots[Stored]


class Fold(NamedTuple):
    """How far the log is folded, and the batches that are."""

    sequence: int = 0
    batches: tuple[int, ...] = ()


class Driver(NamedTuple):
    """One driver. `until` is the last batch that it knows to be committed."""

    step: str = "off"
    columns: int = 0
    sequence: int = 0
    """Where its next record belongs."""
    until: int = 0
    attempt: int = 0
    opened: int = 0
    wrote: int = 0
    """Columns of the entries that it was about to commit."""


class Task(NamedTuple):
    """One attempt to write a batch."""

    batch: int
    attempt: int
    columns: int
    done: bool = False


class Changer(NamedTuple):
    """Somebody who changes columns."""

    step: str = "base"
    version: int = 0
    sequence: int = 0


@cache
def as_record(stored: Stored, sequence: int) -> LogRecord:
    """The product's record."""
    name = f"{stored.kind} {stored.batch}.{stored.attempt} of {stored.by}"
    if stored.kind == "schema":
        return SchemaRecord(record_id=f"{name} at {sequence}", sequence=sequence, stream="s")
    if stored.kind == "open":
        return OpenRecord(record_id=f"{name} at {sequence}", sequence=sequence, stream="s", query_id="q", shards={})
    part = ShardPart(SHARD, f"attempt {stored.attempt}, columns {stored.columns}", (sequence,), 1, 1)
    return BatchRecord(
        record_id=name,
        sequence=sequence,
        stream="s",
        open_id="",
        query_id="q",
        batch_id=stored.batch,
        shards={"s0": part},
    )


def schema_model(bounds: SchemaBounds, rules: Rules = PRODUCT) -> Model:
    """Every driver and changer may start at any time, and stall or die anywhere."""
    moves = _Moves(bounds, rules)
    start: dict[str, object] = {f"driver{d}": Driver() for d in range(bounds.drivers)}
    start |= {f"tasks{d}": () for d in range(bounds.drivers)}
    start |= {f"changer{x}": Changer() for x in range(bounds.changers)}
    start |= {"log": (), "fold": Fold(), "base": 0, "returned": 0, "folds": bounds.folds}
    start |= {"lost": bounds.lost, "retries": bounds.retries, "extends": bounds.extends}
    actions = []
    for d in range(bounds.drivers):
        before = (f"driver{d - 1}",) if d else ()
        actions += [
            Action((f"driver{d}", "log", "fold", "base", *before), partial(moves.open, d), _opens),
            Action((f"driver{d}", f"tasks{d}"), partial(moves.begin, d), _is("idle")),
            Action((f"driver{d}", "log", "extends"), partial(moves.extend, d), _is("idle")),
            Action(
                (f"driver{d}", f"tasks{d}", "log", "fold", "returned", "lost"), partial(moves.commit, d), _is("wait")
            ),
            Action((f"driver{d}", f"tasks{d}", "base"), partial(moves.again, d), _is("again")),
            Action((f"driver{d}", f"tasks{d}", "log"), partial(moves.describe, d), _is("describe")),
            Action((f"driver{d}", f"tasks{d}", "retries"), partial(moves.retry, d), _is("wait")),
            Action((f"tasks{d}",), partial(moves.write, d), bool),
        ]
    for x in range(bounds.changers):
        before = (f"changer{x - 1}",) if x else ()
        actions.append(Action((f"changer{x}", "base", "log", "fold", "returned", *before), partial(moves.change, x)))
    actions.append(Action(("folds", "log", "fold"), moves.fold, bool))
    drivers = tuple(f"driver{d}" for d in range(bounds.drivers))
    return Model(
        bounds.name,
        start,
        actions,
        [Check(("log", "fold", *drivers), _fault)],
        [
            Witness(
                "everything is committed",
                ("log", "fold"),
                lambda log, fold: len(_committed(log, fold)) == bounds.batches,
            ),
            Witness(
                "a batch is written again",
                ("log",),
                lambda log: any(one and one.attempt and one.columns for one in log),
            ),
            Witness("a change has returned", ("returned",), bool),
            Witness("a record is collected", ("log",), lambda log: len(taken(log)) < len(log)),
        ],
    )


class _Moves:
    def __init__(self, bounds: SchemaBounds, rules: Rules) -> None:
        self._bounds = bounds
        self._rules = rules

    # -- taking the log over -------------------------------------------------------

    def open(self, d: int, driver: Driver, log: Log, fold: Fold, base: int, *before: Driver) -> Iterator[Move]:
        rest = (log, fold, base, *before)
        if driver.step == "off":
            if any(one.step == "off" for one in before):
                return
            if not self._rules.columns_after_open:
                yield Move((f"driver {d} reads columns {base}",), (driver._replace(step="tip", columns=base), *rest))
                return
            yield from self._look(d, driver, rest)
        elif driver.step == "tip":
            yield from self._look(d, driver, rest)
        elif driver.step == "open":
            if there(log, driver.sequence - 1):
                yield Move((f"driver {d} finds {driver.sequence} taken",), (driver._replace(step="tip"), *rest))
                return
            opened = driver._replace(
                step="prove", opened=driver.sequence, until=len(_committed(log, fold)), sequence=driver.sequence + 1
            )
            stored = put(log, driver.sequence - 1, Stored("open", d))
            yield Move((f"driver {d} puts an open record at {driver.sequence}",), (opened, stored, *rest[1:]))
        elif driver.step == "prove":
            yield from self._prove(d, driver, rest)
        else:
            yield Move((f"driver {d} reads columns {base}",), (driver._replace(step="idle", columns=base), *rest))

    def _look(self, d: int, driver: Driver, rest: tuple[object, ...]) -> Iterator[Move]:
        log, fold = rest[:2]
        end = self._rules.log_end([at + 1 for at in taken(log)], [fold.sequence])  # type: ignore[arg-type,attr-defined]
        yield Move((f"driver {d} finds the log's end, {end}",), (driver._replace(step="open", sequence=end + 1), *rest))

    def _prove(self, d: int, driver: Driver, rest: tuple[object, ...]) -> Iterator[Move]:
        log, fold = rest[:2]
        mine = as_record(Stored("open", d), driver.opened)
        judged = self._rules.judge_open(mine, _above(log, driver.opened), fold.sequence)  # type: ignore[arg-type,attr-defined]
        if judged is OpenOutcome.FENCED:
            yield self._fenced(d, driver, log, rest)  # type: ignore[arg-type]
        elif judged is OpenOutcome.AGAIN:
            yield Move((f"driver {d} lies in a collected slot: once more",), (driver._replace(step="tip"), *rest))
        else:
            step = "columns" if self._rules.columns_after_open else "idle"
            held = driver._replace(step=step, sequence=len(log) + 1)  # type: ignore[arg-type]
            yield Move((f"driver {d} has the log",), (held, *rest))

    def extend(self, d: int, driver: Driver, log: Log, left: int) -> Iterator[Move]:
        """A further claim: one more open record, where the driver's next record belongs, over schema records."""
        if not left:
            return
        opens = [at for at in taken(log) if found(log, at).kind == "open"]
        mine, now = (Head("s", opened=_opened(log, at)) for at in (driver.opened, opens[-1] + 1))
        if not self._rules.holds_log(mine, now):
            yield self._fenced(d, driver, log, (log, left))
            return
        at = driver.sequence
        while there(log, at - 1) and self._rules.is_stepped_over(as_record(found(log, at - 1), at)):
            at += 1
        if there(log, at - 1):
            yield self._fenced(d, driver, log, (log, left))
            return
        step = "columns" if at > driver.sequence and self._rules.reads_again else "idle"
        extended = driver._replace(step=step, sequence=at + 1, opened=at)
        yield Move(
            (f"driver {d} claims a shard: open record at {at}",),
            (extended, put(log, at - 1, Stored("open", d)), left - 1),
        )

    def _fenced(self, d: int, driver: Driver, log: Log, rest: tuple[object, ...]) -> Move:
        others = any(one is not None and one.kind == "open" and one.by != d for one in log[driver.opened :])
        wrong = None if others else f"driver {d} is told Fenced, and nobody has taken its stream"
        return Move((f"driver {d} is fenced",), (driver._replace(step="dead"), *rest), wrong)

    # -- batches ---------------------------------------------------------------------

    def begin(self, d: int, driver: Driver, tasks: tuple[Task, ...]) -> Iterator[Move]:
        if driver.until < self._bounds.batches:
            begun = _with(tasks, Task(driver.until + 1, driver.attempt, driver.columns))
            label = (f"driver {d} begins batch {driver.until + 1} with columns {driver.columns}",)
            yield Move(label, (driver._replace(step="wait"), begun))

    def retry(self, d: int, driver: Driver, tasks: tuple[Task, ...], left: int) -> Iterator[Move]:
        mine = Task(driver.until + 1, driver.attempt, driver.columns)
        if left and mine._replace(done=True) in tasks and mine not in tasks:
            yield Move((f"driver {d} speculates",), (driver, _with(tasks, mine), left - 1))

    def write(self, d: int, tasks: tuple[Task, ...]) -> Iterator[Move]:
        for task in tasks:
            if not task.done:
                done = tuple(sorted({*(one for one in tasks if one != task), task._replace(done=True)}))
                yield Move((f"a task of driver {d} writes batch {task.batch} with columns {task.columns}",), (done,))

    def commit(
        self, d: int, driver: Driver, tasks: tuple[Task, ...], log: Log, fold: Fold, returned: int, lost: int
    ) -> Iterator[Move]:
        at = driver.sequence
        for task in tasks:
            if not task.done or (task.batch, task.attempt) != (driver.until + 1, driver.attempt):
                continue
            mine = Stored("batch", d, task.batch, task.attempt, task.columns)
            label = (f"driver {d} commits batch {task.batch} at {at} with columns {task.columns}",)
            done = driver._replace(step="idle", until=task.batch, sequence=at + 1, attempt=driver.attempt + 1)
            if not there(log, at - 1):
                stale = None
                if task.columns < returned and at > fold.sequence:
                    stale = f"batch {task.batch} lacks columns {returned}, whose change had returned"
                stored = put(log, at - 1, mine)
                yield Move(label, (done, (), stored, fold, returned, lost), stale)
                if lost:
                    yield Move(
                        (*label, "and the response is lost"), (driver, tasks, stored, fold, returned, lost - 1), stale
                    )
                continue
            record = as_record(found(log, at - 1), at)
            if self._rules.is_own(as_record(mine, at), record):
                yield Move((f"driver {d} finds its own record at {at}",), (done, (), log, fold, returned, lost))
            elif self._rules.is_stepped_over(record):
                step = "again" if self._rules.reads_again else "wait"
                over = at + 1 if self._rules.steps_by_one else len(log) + 1
                moved = driver._replace(step=step, sequence=over, wrote=task.columns)
                yield Move((f"driver {d} steps over {at}",), (moved, tasks, log, fold, returned, lost))
            else:
                yield self._fenced(d, driver, log, (tasks, log, fold, returned, lost))

    def again(self, d: int, driver: Driver, tasks: tuple[Task, ...], base: int) -> Iterator[Move]:
        if base == driver.wrote:
            yield Move(
                (f"driver {d} reads the same columns",), (driver._replace(step="wait", columns=base), tasks, base)
            )
            return
        described = driver._replace(step="describe", columns=base)
        yield Move((f"driver {d} reads columns {base}",), (described, tasks, base))

    def describe(self, d: int, driver: Driver, tasks: tuple[Task, ...], log: Log) -> Iterator[Move]:
        """One more open record says how rows are decoded from here on; then the batch is written again."""
        at = driver.sequence
        if there(log, at - 1):
            if self._rules.is_stepped_over(as_record(found(log, at - 1), at)):
                over = driver._replace(step="again", sequence=at + 1)
                yield Move((f"driver {d} steps over {at}",), (over, tasks, log))
            else:
                yield self._fenced(d, driver, log, (tasks, log))
            return
        attempt = driver.attempt + self._rules.fresh_attempt
        begun = _with(tasks, Task(driver.until + 1, attempt, driver.columns))
        label = (f"driver {d} puts an open record at {at}, writes batch {driver.until + 1} again: {driver.columns}",)
        again = driver._replace(step="wait", attempt=attempt, sequence=at + 1, opened=at)
        yield Move(label, (again, begun, put(log, at - 1, Stored("open", d))))

    # -- columns ---------------------------------------------------------------------

    def change(
        self, x: int, changer: Changer, base: int, log: Log, fold: Fold, returned: int, *before: Changer
    ) -> Iterator[Move]:
        if changer.step == "over" or any(one.step == "base" for one in before):
            return
        rest, first = (log, fold, returned, *before), self._rules.base_first
        who = f"changer {x}"
        if (changer.step == "base" and first) or changer.step == "late":
            step = "list" if first else "return"
            changed = changer._replace(step=step, version=base + 1)
            yield Move((f"{who} changes the base: columns {base + 1}",), (changed, base + 1, *rest))
        elif changer.step in ("base", "list"):
            end = self._rules.log_end([at + 1 for at in taken(log)], [fold.sequence])
            step = "put" if log else "return" if first else "late"
            yield Move(
                (f"{who} finds the log's end, {end}",), (changer._replace(step=step, sequence=end + 1), base, *rest)
            )
        elif changer.step == "put":
            if there(log, changer.sequence - 1):
                taken_over = changer._replace(sequence=changer.sequence + 1)
                yield Move((f"{who} finds {changer.sequence} taken",), (taken_over, base, *rest))
                return
            stored = put(log, changer.sequence - 1, Stored("schema", x))
            label = (f"{who} puts a schema record at {changer.sequence}",)
            yield Move(label, (changer._replace(step="prove"), base, stored, *rest[1:]))
        elif changer.step == "prove":
            mine = as_record(Stored("schema", x), changer.sequence)
            assert isinstance(mine, SchemaRecord)
            after = "return" if first else "late"
            step = after if self._rules.is_announced(mine, fold.sequence) else "list"
            yield Move((f"{who} lists: {step}",), (changer._replace(step=step), base, *rest))
        else:
            over = (Changer("over"), base, log, fold, max(returned, changer.version), *before)
            yield Move((f"{who} RETURNS: columns {changer.version}",), over)

    def fold(self, left: int, log: Log, fold: Fold) -> Iterator[Move]:
        """A fold, and the collection of all that may go then."""
        if len(log) <= fold.sequence or len(log) < 2:
            return
        made = Fold(len(log), tuple(_committed(log, fold)))
        there_now = [at + 1 for at in taken(log)]

        def is_batch(sequence: int) -> bool:
            return found(log, sequence - 1).kind == "batch"

        def may_go(sequence: int) -> bool:
            return is_batch(sequence) or not self._rules.keeps_fence(f"{found(log, sequence - 1).kind} record")

        last = self._rules.last_batch(there_now, is_batch)
        gone = [at for at in self._rules.collectable_records(there_now, [made.sequence]) if may_go(at) and at != last]
        for at in gone:
            log = without(log, at - 1)
        if gone:
            yield Move((f"the log is folded at {made.sequence}, records {gone} go",), (left - 1, log, made))


# -- what is asked ---------------------------------------------------------------------


def _committed(log: Log, fold: Fold) -> list[int]:
    return [*fold.batches, *(one.batch for one in log[fold.sequence :] if one is not None and one.kind == "batch")]


def _above(log: Log, sequence: int) -> Iterable[LogRecord | None]:
    return [None if one is None else as_record(one, at) for at, one in enumerate(log[sequence:], sequence + 1)]


def _opened(log: Log, sequence: int) -> OpenRecord:
    record = as_record(found(log, sequence - 1), sequence)
    assert isinstance(record, OpenRecord)
    return record


def _with(tasks: tuple[Task, ...], task: Task) -> tuple[Task, ...]:
    return tuple(sorted({*tasks, task}))


def _fault(log: Log, fold: Fold, *drivers: Driver) -> str | None:
    batches = _committed(log, fold)
    if batches != list(range(1, len(batches) + 1)):
        return f"invariant 1: batches are committed twice or left out: {batches}"
    for d, driver in enumerate(drivers):
        if driver.until > len(batches):
            return f"invariant 1: driver {d} took batch {driver.until} for committed, and it is not"
    return None


def _opens(driver: Driver) -> bool:
    return driver.step in ("off", "tip", "open", "prove", "columns")


def _is(step: str) -> Callable[[Driver], bool]:
    return lambda driver: driver.step == step
