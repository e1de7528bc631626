"""One slot that two race for: who makes something, before it is committed, and who removes it, before anything goes.

Only the winner continues, however long the other slept (R20). A slot is put if absent and stays as long as the loser
may still come, so that idempotent for the winner as well.
"""

from __future__ import annotations

from typing import Literal

from headgate.connectors.objects import ObjectStore
from headgate.errors import AlreadyExists, NotFound

Party = Literal["maker", "collector"]


def taken_by(store: ObjectStore, slot: str) -> str | None:
    """Who has the slot; None: nobody yet. Raises Transient."""
    try:
        return bytes(store.get(slot)).decode(errors="replace").strip()
    except NotFound:
        return None


def wins(store: ObjectStore, slot: str, party: Party) -> bool:
    """Take the slot. True: it is this party's, now or since before. Raises Transient."""
    try:
        store.put_if_absent(slot, f"{party}\n".encode())
    except AlreadyExists:
        return taken_by(store, slot) == party
    return True
