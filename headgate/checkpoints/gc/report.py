"""What a collection finds, and what it deleted. Values."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.deletion import Kind


@dataclass(frozen=True)
class Garbage:
    """One object that may be deleted."""

    kind: Kind
    store: ObjectStore = field(repr=False)
    key: str
    nbytes: int
    why: str
    slot: str | None = None
    """The outcome that must be won from the object's maker before it is deleted, in the same store (R20)."""


@dataclass(frozen=True)
class Collection:
    """What a collection found, and whether it was deleted."""

    found: tuple[Garbage, ...]
    applied: bool
    kept: tuple[str, ...] = ()
    """What could not be judged, and why; it stays."""

    @property
    def nbytes(self) -> int:
        """Bytes of everything found."""
        return sum(one.nbytes for one in self.found)
