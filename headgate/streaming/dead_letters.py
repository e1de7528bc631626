"""Dead letters for the streaming side; they live in `headgate.checkpoints.log.dead_letters`."""

from __future__ import annotations

from headgate.checkpoints.log.dead_letters import (
    PREFIX,
    SCHEMA,
    DeadEntry,
    dead_entries,
    dead_letter_home,
    dead_letter_name,
    dead_letter_shard,
    read_dead_letters,
)

__all__ = [
    "PREFIX",
    "SCHEMA",
    "DeadEntry",
    "dead_entries",
    "dead_letter_home",
    "dead_letter_name",
    "dead_letter_shard",
    "read_dead_letters",
]
