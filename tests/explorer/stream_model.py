"""Drivers of one stream, their tasks, its shards and its commit log: one transition per store operation.

What is left out, and why nothing is lost by it:
- Deaths: whoever is fenced stands still, see `exploring`. So do jobs of a claim that is over.
- Conflicts that send a party back to an earlier read: it might as well have read later.
- The look before the claim, and the last position listed as it was then: both only shorten the search for the tip.
- The first re-read, before the open record: it only ends a driver that the second one ends as well.
- Reads that only let a party go on (LIST after the open record, re-reads of manifests) are one step: what they ask
  for never comes back once it is gone, so that reading earlier lets more happen, not less.
- Manifests are written by one atomic compare-and-set. Versions and their collection are in `shard_model`.
- A flush reads manifest and WAL in one step: entries that count change only if the flush cannot commit any more.
- A fold is stored when it is made: what it sums up never changes.
- Ages: everything is old enough for garbage collection at once. A collection is any sequence of single deletes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.explorer.exploring import Check, Model
from tests.explorer.rules import Rules
from tests.explorer.stream_batches import Batches
from tests.explorer.stream_bounds import Bounds
from tests.explorer.stream_opening import Opening
from tests.explorer.stream_parts import Driver, Hold, Log
from tests.explorer.stream_promises import log_fault, shard_fault, witnesses
from tests.explorer.stream_upkeep import Collecting, Upkeep

PRODUCT = Rules()


def stream_model(bounds: Bounds, rules: Rules = PRODUCT) -> Model:
    """Every driver may start at any time, and stall or die anywhere."""
    pieces = (Opening, Batches, Upkeep, Collecting)
    actions = [action for piece in pieces for action in piece(bounds, rules).actions()]
    checks = [Check(("log", "fold"), log_fault)]
    for s in range(bounds.shards):
        fault = partial(shard_fault, rules, bounds.plans, s)
        checks.append(Check((f"wal{s}", f"manifest{s}", "log", "fold"), fault))
    return Model(bounds.name, first_state(bounds), actions, checks, list(witnesses(bounds.plans, bounds.shards)))


def first_state(bounds: Bounds) -> Mapping[str, Any]:
    """A stream that never ran."""
    drivers, shards = range(len(bounds.plans)), range(bounds.shards)
    start: dict[str, Any] = {f"driver{d}": Driver() for d in drivers}
    start |= {f"hold{d}.{s}": Hold() for d in drivers for s in shards}
    start |= {f"tasks{d}.{s}": () for d in drivers for s in shards}
    start |= {f"wal{s}": () for s in shards} | {f"manifest{s}": None for s in shards}
    start |= {"log": Log(), "fold": None, "opens": 0}
    start |= {"retries": bounds.retries, "flushes": bounds.flushes, "checkpoints": bounds.checkpoints}
    return start | {"folds": bounds.folds, "stops": bounds.stops}
