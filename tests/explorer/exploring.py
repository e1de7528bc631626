"""Breadth-first search through every interleaving of a model, with the shortest trace to whatever breaks.

A state is a fixed number of parts (one shard's WAL, its manifest, the log, one driver …). An action looks at a few
of them and says what may happen next, which is one store operation of one party; a check looks at a few and says
what is wrong. Both are pure functions of the parts they look at, so each is called once per distinct look and
remembered: this is what lets the product's own functions be called in millions of states.

A stall is a party that is not chosen; a crash is a stall for ever. Hence a step that only ends its party (Fenced,
abandoned) need not be taken: whoever stands still before it can do no more than whoever is gone, and may do more.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import Any, TypeAlias

Label: TypeAlias = tuple[object, ...]
"""What happened, in words; joined by spaces when it is printed."""

Value: TypeAlias = Any
"""Of one part of a state. Hashable; what it is, its model knows."""


@dataclass(frozen=True)
class Move:
    """One thing that may happen: the new values of the parts that the action looks at, in its order."""

    label: Label
    values: tuple[Value, ...]
    fault: str | None = None
    """The step itself breaks a promise, whatever state it leads to."""


def _always(value: Value) -> bool:
    return True


@dataclass(frozen=True)
class Action:
    """What one party may do. `step` gets the values of `parts` and yields what may happen.

    It is asked only where `when` holds for the first of the parts.
    """

    parts: tuple[str, ...]
    step: Callable[..., Iterable[Move]]
    when: Callable[[Value], bool] = _always


@dataclass(frozen=True)
class Check:
    """What must hold. `fault` gets the values of `parts` and says what is wrong, or None."""

    parts: tuple[str, ...]
    fault: Callable[..., str | None]


@dataclass(frozen=True)
class Witness:
    """What must happen in some state: otherwise the search has shown less than it seems."""

    name: str
    parts: tuple[str, ...]
    holds: Callable[..., bool]


@dataclass(frozen=True)
class Model:
    """Parts with their first values, what may happen to them, and what must hold."""

    name: str
    start: Mapping[str, Value]
    actions: Sequence[Action]
    checks: Sequence[Check]
    witnesses: Sequence[Witness] = ()


@dataclass(frozen=True)
class Explored:
    """What a search saw."""

    name: str
    states: int
    transitions: int
    seconds: float
    complete: bool
    """Whether every reachable state was visited."""
    fault: str | None = None
    trace: tuple[str, ...] = ()
    """The shortest way to the fault."""
    witnessed: frozenset[str] = frozenset()
    """The names of what had to happen in some state, and did."""

    @property
    def summary(self) -> str:
        """One line."""
        size = f"{self.name}: {self.states:,} states, {self.transitions:,} transitions, {self.seconds:.1f} s of CPU"
        if self.fault is not None:
            return f"{size}; broken after {len(self.trace)} steps: {self.fault.partition(' Next: ')[0]}"
        return f"{size}; {'every reachable one, all sound' if self.complete else 'stopped, sound so far'}"

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"    {number:2}. {step}" for number, step in enumerate(self.trace, 1))])


def explore(model: Model, *, limit: int | None = None) -> Explored:
    """Visit every state, nearest first, until a promise is broken or `limit` states were seen."""
    started = time.process_time()
    search = _Search(model)
    complete = search.run(limit)
    seconds = time.process_time() - started
    states = len(search.states)
    return Explored(
        model.name,
        states,
        search.transitions,
        seconds,
        complete,
        search.fault,
        search.trace,
        frozenset(search.witnessed),
    )


class _Part:
    """The values that one part was ever seen with, each known by a number."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Value) -> int:
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.values)
            self.values.append(value)
        return known


class _Look:
    """A function of some parts of a state, called once per distinct look."""

    def __init__(self, search: _Search, parts: tuple[str, ...], function: Callable[..., Any]) -> None:
        self._parts = [search.parts[name] for name in parts]
        self.places = [search.places[name] for name in parts]
        self.key: Callable[[Sequence[int]], Any] = itemgetter(*self.places)
        self._function = function
        self.known: dict[Any, Any] = {}

    def call(self, key: Any) -> Any:
        numbers = key if isinstance(key, tuple) else (key,)
        return self._function(*(part.values[number] for part, number in zip(self._parts, numbers, strict=True)))


class _Search:
    """The states seen so far, in the order they were met."""

    def __init__(self, model: Model) -> None:
        self.parts = {name: _Part() for name in model.start}
        self.places = {name: place for place, name in enumerate(model.start)}
        self._packing = Struct(f"{len(self.parts)}I")
        self._actions = [
            (self.places[name], looks, self.parts[name], dict[int, list[_Look]]())
            for name in self.parts
            if (looks := [(_Look(self, a.parts, a.step), a.when) for a in model.actions if a.parts[0] == name])
        ]
        self._checks = [_Look(self, check.parts, check.fault) for check in model.checks]
        self._unseen = {one.name: _Look(self, one.parts, one.holds) for one in model.witnesses}
        self._witnesses = len(self._unseen)
        self.witnessed: set[str] = set()
        self.transitions = 0
        self.fault: str | None = None
        self.trace: tuple[str, ...] = ()
        first = [self.parts[name].number(value) for name, value in model.start.items()]
        self.states = [self._packing.pack(*first)]
        self._known = set(self.states)
        self._parents = array("I", [0])
        self._judge(first, 0, ("the beginning",))

    def run(self, limit: int | None) -> bool:
        """Whether every state was visited."""
        at, pack, states, known = 0, self._packing.pack, self.states, self._known
        while at < len(states) and self.fault is None:
            if limit is not None and len(states) >= limit:
                return False
            state = self._packing.unpack(states[at])
            for moves in self._moves(state):
                self.transitions += len(moves)
                for label, changes, fault in moves:
                    if fault is not None:
                        self._found(fault, at, label)
                        return False
                    new = list(state)
                    for place, number in changes:
                        new[place] = number
                    packed = pack(*new)
                    if packed not in known:
                        known.add(packed)
                        states.append(packed)
                        self._parents.append(at)
                        if self._judge(new, at, label):
                            return False
            at += 1
        return self.fault is None

    def _moves(self, state: Sequence[int]) -> list[list[_Change]]:
        """What may happen, per action that allows anything."""
        found = []
        for place, looks, part, asked in self._actions:
            number = state[place]
            asking = asked.get(number)
            if asking is None:
                value = part.values[number]
                asking = asked[number] = [look for look, when in looks if when(value)]
            for look in asking:
                key = look.key(state)
                moves = look.known.get(key)
                if moves is None:
                    moves = look.known[key] = [self._change(look, key, move) for move in look.call(key)]
                if moves:
                    found.append(moves)
        return found

    def _change(self, look: _Look, key: Any, move: Move) -> _Change:
        """A move as the numbers that it changes."""
        numbers = key if isinstance(key, tuple) else (key,)
        names = list(self.parts)
        new = [
            (place, self.parts[names[place]].number(value))
            for place, value in zip(look.places, move.values, strict=True)
        ]
        return move.label, [pair for pair, old in zip(new, numbers, strict=True) if pair[1] != old], move.fault

    def _judge(self, state: Sequence[int], parent: int, label: Label) -> bool:
        """Whether something is wrong with a state that was met for the first time."""
        for look in self._checks:
            key = look.key(state)
            fault = look.known.get(key, look)
            if fault is look:
                fault = look.known[key] = look.call(key)
            if fault is not None:
                self._found(fault, parent, label)
                return True
        for name, look in self._unseen.items():
            key = look.key(state)
            holds = look.known.get(key)
            if holds is None:
                holds = look.known[key] = look.call(key)
            if holds:
                self.witnessed.add(name)
        if len(self.witnessed) > self._witnesses - len(self._unseen):
            self._unseen = {name: look for name, look in self._unseen.items() if name not in self.witnessed}
        return False

    def _found(self, fault: str, parent: int, label: Label) -> None:
        self.fault = fault
        steps = [label]
        while parent:
            child, parent = parent, self._parents[parent]
            state = self._packing.unpack(self.states[parent])
            moves = (move for moves in self._moves(state) for move in moves)
            steps.append(next(label for label, changes, _ in moves if self._leads(state, changes, child)))
        self.trace = tuple(" ".join(map(str, step)) for step in reversed(steps))

    def _leads(self, state: Sequence[int], changes: list[tuple[int, int]], child: int) -> bool:
        new = list(state)
        for place, number in changes:
            new[place] = number
        return self._packing.pack(*new) == self.states[child]


_Change: TypeAlias = tuple[Label, list[tuple[int, int]], str | None]
