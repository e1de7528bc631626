"""A seeded scheduler: threads of the product that run one at a time, switched at pause points and at store operations.

Promises:
1. The same seed gives the same history, on every machine: who runs next, and what goes wrong, comes from the seed.
2. One thread runs at a time. A thread that waits for a lock, a condition or a time is not let go before it may.
3. Nothing waits in real time: the clock moves when somebody sleeps, or is late.

What deviates from the plain course (each thread runs until it ends or waits) is a list of deviations, each at the n-th
pause of a thread. So a history is replayed by its deviations, and shrunk by leaving some of them out.
"""

from __future__ import annotations

import random
import re
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from greenlet import getcurrent, greenlet

from headgate import clock, steps

_NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")
TICK = 0.001
"""Seconds that one step takes."""
EPOCH = 1_800_000_000.0
LONGEST = 40_000
"""Steps of one schedule: more means that somebody goes round for ever."""


class Crash(BaseException):
    """The process died. No `except Exception` survives it, as none survives kill -9."""


class Violation(AssertionError):
    """A promise is broken."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """What happens at the n-th pause of a thread instead of nothing."""

    thread: str
    pause: int
    what: str
    """switch, crash, cut, sleep, step clock, deliver, or a fault of the store."""
    value: Any = None


@dataclass(frozen=True, slots=True)
class Chances:
    """How often things happen, drawn once per schedule: calm ones and wild ones find different things."""

    switch: float = 0.0
    crash: float = 0.0
    cut: float = 0.0
    sleep: float = 0.0
    fault: float = 0.0
    late: float = 0.0

    @classmethod
    def drawn(cls, chance: random.Random) -> Chances:
        pick = chance.choice
        return cls(
            switch=pick((0.02, 0.05, 0.1, 0.3)),
            crash=pick((0.0, 0.0, 0.002, 0.01)),
            cut=pick((0.0, 0.0, 0.0, 0.002)),
            sleep=pick((0.0, 0.005, 0.02)),
            fault=pick((0.0, 0.02, 0.1)),
            late=pick((0.0, 0.05)),
        )


@dataclass
class Process:
    """Threads that die together."""

    name: str
    dead: bool = False


@dataclass(eq=False)
class SimThread:
    """One thread of the simulation, with the face of `threading.Thread` as the product uses it."""

    scheduler: Scheduler
    name: str
    process: Process
    call: Callable[[], object]
    stack: greenlet = field(init=False)
    """Its own: a change of threads is a change of stacks, which costs less than the machine's threads do."""
    ready: Callable[[], bool] | None = None
    """None: it may run. Otherwise it waits until this is true."""
    until: float | None = None
    """It waits no longer than until this time."""
    pauses: int = 0
    point: str = "start"
    """Where it stands."""
    ended: bool = False

    def start(self) -> None:
        """It may run from now on."""
        self.stack = greenlet(self._run, self.scheduler.hub)
        self.scheduler.threads.append(self)

    def join(self, timeout: float | None = None) -> None:
        self.scheduler.block(lambda: self.ended, timeout, f"join {self.name}")

    def is_alive(self) -> bool:
        return not self.ended

    @property
    def can_run(self) -> bool:
        return self.ready is None or self.process.dead or self.ready()

    def _run(self) -> None:
        scheduler = self.scheduler
        try:
            with clock.using(SimClock(scheduler)), steps.watching(scheduler.pause):
                if not self.process.dead:
                    self.call()
        except Crash:
            pass
        except Violation as error:
            scheduler.fail(error)
        except Exception as error:
            text = "".join(traceback.format_exception(error)[-2:]).strip()
            scheduler.fail(Violation(f"invariant 7: {type(error).__name__}, which is no error of headgate's: {text}"))
        except BaseException as error:
            scheduler.fail(error)
        finally:
            self.ended = True
            scheduler.threads.remove(self)


class _Running:
    """Who runs now."""

    thread: Any = None


_current = _Running()


def current() -> SimThread | None:
    """The simulated thread that runs here; None outside of simulations."""
    found: SimThread | None = _current.thread
    return found


class SimClock:
    """The clock of the simulation, as `headgate.clock` takes it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    def wall(self) -> float:
        return EPOCH + self._scheduler.now

    def sleep(self, seconds: float) -> None:
        self._scheduler.block(lambda: False, seconds, "sleep")


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history."""

    who: str
    what: str


class Scheduler:
    """Lets threads go one at a time. `deviations`: replay these, and draw nothing."""

    def __init__(self, seed: int, deviations: list[Deviation] | None = None) -> None:
        self.chance = random.Random(f"schedule {seed}")
        self.chances = Chances.drawn(self.chance)
        self._rare = self.chances.crash + self.chances.cut + self.chances.sleep * 1.25 + self.chances.late
        self.now = 0.0
        self.threads: list[SimThread] = []
        self.history: list[Event] = []
        self.deviations: list[Deviation] = []
        self.pairs: set[tuple[str, str]] = set()
        """Where one stood when another went on. Pairs that are new to the schedule are preferred."""
        self.error: BaseException | None = None
        self.ending = False
        self.quiet = False
        """Nothing deviates any more."""
        self.on_cut: Callable[[], object] = lambda: None
        self.on_step_clock: Callable[[float], object] = lambda seconds: None
        self.on_deliver: Callable[[], object] = lambda: None
        self._processes_of: Counter[str] = Counter()
        self._threads_of: Counter[str] = Counter()
        self._replayed = None if deviations is None else {(one.thread, one.pause): one for one in deviations}
        self.hub = getcurrent()
        """Whoever calls `run`: where a thread goes that has ended."""
        self._processes: list[Process] = []

    # -- threads -------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """A new one."""
        self._processes_of[name] += 1
        made = Process(_numbered(name, self._processes_of[name]))
        self._processes.append(made)
        return made

    def thread(self, name: str, process: Process, call: Callable[[], object]) -> SimThread:
        """A thread of a process, not started yet."""
        self._threads_of[name] += 1
        return SimThread(self, _numbered(name, self._threads_of[name]), process, call)

    def run(self) -> None:
        """Until every thread has ended. Raises the first violation, or what a thread raised."""
        try:
            while (other := self._next()) is not None:
                self._let_go(other)
        finally:
            _current.thread = None
        if self.error is not None:
            raise self.error

    def fail(self, error: BaseException) -> None:
        """The first error counts; everything ends."""
        if self.error is None:
            self.error = error
        self.end()

    def end(self) -> None:
        """Every thread unwinds at its next pause."""
        self.ending = True
        for process in self._processes:
            process.dead = True

    def kill(self, process: Process) -> None:
        """kill -9."""
        process.dead = True

    # -- pauses --------------------------------------------------------------------------

    def pause(self, what: str, faults: tuple[str, ...] = ()) -> Deviation | None:
        """The running thread is about to do `what`: others may come first. Of `faults` one may be its own."""
        me = _current.thread
        if me.process.dead:
            raise Crash
        me.pauses += 1
        me.point = what
        self.now += TICK
        if len(self.history) > LONGEST:
            raise Violation(f"{me.name} goes round for ever, at {what}")
        self.history.append(Event(me.name, what))
        if self.quiet:
            return None
        deviation = self._drawn(me, faults) if self._replayed is None else self._replayed.get((me.name, me.pauses))
        if deviation is None:
            return None
        if self._replayed is None:
            self.deviations.append(deviation)
        return self._deviate(me, deviation)

    def _deviate(self, me: SimThread, deviation: Deviation) -> Deviation | None:
        what = deviation.what
        if what == "switch":
            other = next((one for one in self.threads if one.name == deviation.value and one is not me), None)
            if other is not None and (other.can_run or other.until is not None):
                self.pairs.add((kind(me.point), kind(other.point)))
                self._let_go(other)
        elif what == "sleep":
            self.history.append(Event(me.name, f"* sleeps {deviation.value:.0f} s"))
            self.block(lambda: False, deviation.value, me.point)
        elif what == "crash":
            self.history.append(Event(me.name, "* its process dies"))
            self.kill(me.process)
        elif what == "cut":
            self.history.append(Event(me.name, "* the power fails"))
            for process in self._processes:
                process.dead = True
            self.on_cut()
        elif what == "step clock":
            self.history.append(Event("store", f"* its clock steps by {deviation.value:.0f} s"))
            self.on_step_clock(deviation.value)
        elif what == "deliver":
            self.on_deliver()
        else:
            self.history.append(Event(me.name, f"* {what}"))
            return deviation
        if me.process.dead:
            raise Crash
        return None

    def _drawn(self, me: SimThread, faults: tuple[str, ...]) -> Deviation | None:
        chance, chances, drawn = self.chance, self.chances, self.chance.random()
        if drawn < chances.switch:
            others = [one for one in self.threads if one is not me and (one.can_run or one.until is not None)]
            if not others:
                return None
            fresh = [one for one in others if (kind(me.point), kind(one.point)) not in self.pairs]
            other = chance.choice(fresh if fresh and chance.random() < 0.5 else others)
            return Deviation(me.name, me.pauses, "switch", other.name)
        drawn -= chances.switch
        # Reads are many, and repeated: a fault of a write is worth more.
        fault = chances.fault * (1.5 if len(faults) > 1 else 0.2) if faults else 0.0
        if drawn >= self._rare + fault:
            return None
        if drawn < fault:
            return Deviation(me.name, me.pauses, chance.choice(faults))
        drawn -= fault
        for what, odds in (
            ("crash", chances.crash),
            ("cut", chances.cut),
            ("sleep", chances.sleep),
            ("step clock", chances.sleep / 4),
            ("deliver", chances.late),
        ):
            if drawn < odds:
                value = None
                if what == "sleep":
                    value = chance.choice((1.0, 600.0, 3 * 3600.0))
                elif what == "step clock":
                    value = chance.choice((-7200.0, 7200.0))
                return Deviation(me.name, me.pauses, what, value)
            drawn -= odds
        return None

    # -- waiting -------------------------------------------------------------------------

    def block(self, ready: Callable[[], bool], timeout: float | None, what: str) -> bool:
        """The running thread waits. True: it is ready; False: its time is over."""
        me = _current.thread
        if me.process.dead:
            raise Crash
        if ready():
            return True
        me.ready, me.until, me.point = ready, None if timeout is None else self.now + timeout, what
        other = self._next()
        assert other is not None
        self._let_go(other)
        me.ready = me.until = None
        if me.process.dead:
            raise Crash
        return ready()

    def _let_go(self, other: SimThread) -> None:
        """Until somebody lets the running thread go again."""
        if not other.can_run and other.until is not None:
            # A little later: what is left of a time may be too small to be added.
            self.now = max(self.now, other.until) + TICK
        me, _current.thread = _current.thread, other
        other.stack.switch()
        _current.thread = me

    def _next(self) -> SimThread | None:
        """Who goes on where the running one cannot: the first that was started, else who waits least."""
        able = [one for one in self.threads if one.can_run]
        if able:
            return able[0]
        timed = [one for one in self.threads if one.until is not None]
        if timed:
            return min(timed, key=lambda one: one.until or 0.0)
        if self.threads:
            waiting = ", ".join(f"{one.name} at {one.point}" for one in self.threads)
            if self.error is None:
                self.error = Violation(f"nobody can go on: {waiting}")
            self.end()
            return self.threads[0]
        return None


@lru_cache(10_000)
def kind(point: str) -> str:
    """A pause point without numbers and ids."""
    return _NUMBER.sub("N", point)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


# -- locks of the product ------------------------------------------------------------------


class SimLock:
    """`threading.RLock` and `threading.Lock` of the product: whoever waits for it is not let go before it is free."""

    def __init__(self) -> None:
        self._owner: SimThread | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _current.thread
        if self._owner is not None and self._owner is not me:
            if not blocking:
                return False
            if not me.scheduler.block(lambda: self._owner is None, None if timeout < 0 else timeout, "lock"):
                return False
        self._owner, self._count = me, self._count + 1
        return True

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimCondition(SimLock):
    """`threading.Condition`."""

    def __init__(self) -> None:
        super().__init__()
        self._waiters: list[list[bool]] = []

    def wait(self, timeout: float | None = None) -> bool:
        me, held, told = _current.thread, self._count, [False]
        self._waiters.append(told)
        self._owner, self._count = None, 0
        try:
            done: bool = me.scheduler.block(lambda: told[0], timeout, "wait")
            me.scheduler.block(lambda: self._owner is None, None, "lock")
        finally:
            # One who dies holds it again for the moment of unwinding: nobody of its process goes on.
            self._waiters = [one for one in self._waiters if one is not told]
            self._owner, self._count = me, held
        return done

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        until = None if timeout is None else clock.monotonic() + timeout
        while not (result := predicate()):
            left = None if until is None else until - clock.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return bool(result)

    def notify(self, n: int = 1) -> None:
        for told in [one for one in self._waiters if not one[0]][:n]:
            told[0] = True

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Locks:
    """`threading` as the modules of the product see it: simulated locks for simulated threads, real ones elsewhere."""

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def Lock(self) -> Any:
        return threading.Lock() if current() is None else SimLock()

    def RLock(self) -> Any:
        return threading.RLock() if current() is None else SimLock()

    def Condition(self) -> Any:
        return threading.Condition() if current() is None else SimCondition()
