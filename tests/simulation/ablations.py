"""The product's rules, each switched off alone: the decision functions are those that the explorer replaces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from headgate.checkpoints.gc import rules as gc_rules
from headgate.checkpoints.gc import shards as gc_shards
from headgate.checkpoints.gc import table as gc_table
from headgate.checkpoints.jobs import columns
from headgate.checkpoints.log import fold, opened_log
from headgate.checkpoints.stream import batches, claims
from headgate.checkpoints.stream import shards as stream_shards
from headgate.errors import NotFound
from headgate.shards import names
from headgate.shards.manifest.decisions import Fate
from headgate.shards.manifest.store import ManifestStore
from headgate.shards.wal import appender, flusher
from tests.explorer.test_ablations import (
    anything_into_an_empty_log,
    by_the_hint,
    listable_below_replay_after,
    over_the_batch_in_flight,
    unraised_plan,
)
from tests.simulation import streams


@dataclass(frozen=True)
class Ablation:
    """One rule less."""

    rule: str
    off: Sequence[tuple[Any, str, Any]]
    """Where the product looks the decision up, and what it finds there instead."""
    cast: Sequence[str]
    """Who takes part, so that it is felt soon. (In deep any cast finds it, within 20,000 schedules.)"""
    first: int = 0
    """A seed from which on it is felt within few schedules."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in self.off:
                stack.enter_context(patch.object(owner, name, value))
            yield


def _unnamed(newest: Any, live: Any, pins: Any, before: Any) -> list[str]:
    held = {one.path for named in (*live, *(pin.manifest for pin in pins)) for one in named.sstables}
    return sorted(set(newest) - held)


def _is_there(stored: Any, *_: Any) -> bool:
    return stored is not None


_VERSIONS = ManifestStore.versions


def _by_hint(self: ManifestStore) -> list[int]:
    """As native looks for the latest: from the hint on, without a LIST."""
    there = _VERSIONS(self)
    try:
        hint = json.loads(bytes(self.store.get(names.version_hint_key(self.shard_id))))["version"]
    except NotFound:
        return there
    return [version for version in there if version <= by_the_hint(there, hint)]


ABLATIONS = (
    Ablation(
        "R1: a checkpoint passes the batch in flight",
        ((stream_shards, "checkpoint_limit", over_the_batch_in_flight),),
        ("driver", "driver", "gc"),
        175,
    ),
    Ablation(
        "R4: a checkpoint does not raise the plan",
        (
            (stream_shards, "next_plan", unraised_plan),
            (opened_log, "check_listable", listable_below_replay_after),
        ),
        ("driver", "driver", "writer", "writer", "gc", "reader"),
        1880,
    ),
    Ablation(
        "R3: no re-read",
        ((appender, "claim_stands", _is_there), (claims, "claim_stands", _is_there)),
        ("writer", "writer", "writer", "gc"),
        70,
    ),
    Ablation("R5: barriers are collected", ((gc_shards, "_stays", lambda *_: False),), ("writer", "writer", "gc")),
    Ablation(
        "R5: open records are collected",
        ((gc_table, "_is_kept", lambda *_: False), (fold, "_is_batch", lambda *_: True)),
        ("driver", "driver", "gc"),
    ),
    Ablation(
        "R7: the latest manifest is the one that the hint leads to",
        ((ManifestStore, "versions", _by_hint),),
        ("writer", "writer", "writer", "gc", "reader"),
        810,
    ),
    Ablation(
        "R8: nobody asks for a batch write's id after the open record",
        ((batches, "_is_written_now", lambda driver, batch_id: False),),
        ("append", "append", "append", "gc", "reader"),
    ),
    Ablation(
        "R20: an SSTable that no manifest names goes, whatever it is called",
        ((gc_rules, "collectable_sstables", _unnamed),),
        ("driver", "gc", "gc"),
        230,
    ),
    Ablation(
        "R22: streams are not told of a change of columns",
        ((columns, "announce", lambda home: None),),
        ("driver", "driver", "changer"),
    ),
    Ablation(
        "R23: nobody compares the table's id",
        ((columns, "is_another_table", lambda *_: False), (columns, "check_own", lambda *_: None)),
        ("driver", "driver", "renewer"),
    ),
    Ablation(
        "R23: any batch may meet an empty log",
        ((streams, "decide_batch", anything_into_an_empty_log),),
        ("driver", "driver", "renewer", "gc"),
        935,
    ),
    Ablation(
        "R24: an append in flight is named not durable",
        ((flusher, "fate", lambda *, sent, slot: Fate.FAILED),),
        ("writer", "writer", "gc"),
        60,
    ),
)
