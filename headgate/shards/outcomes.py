"""A slot that two parties race for: the maker of something, before it is committed, and the remover, before anything is
deleted.

Only the winner continues, however long the other slept (R20). A slot is put if absent and stays as long as the loser
may still come, so taking it again is safe for the winner.
"""

from __future__ import annotations

from typing import Literal

from headgate.connectors.objects import ObjectStore
from headgate.errors import AlreadyExists, NotFound

Party = Literal["maker", "collector"]


def taken_by(store: ObjectStore, slot: str) -> str | None:
    """The party that has the slot; None if it is free. Raises Transient."""
    try:
        return bytes(store.get(slot)).decode(errors="replace").strip()
    except NotFound:
        return None


def wins(store: ObjectStore, slot: str, party: Party) -> bool:
    """Take the slot. True if this party has it, from now or from before. Raises Transient."""
    try:
        store.put_if_absent(slot, f"{party}\n".encode())
    except AlreadyExists:
        return taken_by(store, slot) == party
    return True
