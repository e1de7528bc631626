"""The record of a planned clone, written first at its destination: `_headgate/clone.json`.

After a crash, the same call finds it and continues under the same id; any other call fails. It stays and says where the
clone came from. A clone that cannot be completed is marked as abandoned in `_headgate/clone.given_up.json` before it is
removed, so that an interrupted removal is completed too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from headgate import records
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.deletion import delete
from headgate.errors import AlreadyExists, HeadgateError, InvalidInput, NotFound

KEY = "_headgate/clone.json"
"""One object per destination, so that of two different clones only one starts."""

GIVEN_UP = "_headgate/clone.given_up.json"
"""Exists while a clone is being removed."""
OUTCOMES = "_headgate/clones/"
"""Folder of the outcomes: per clone that was begun at a destination, whether it was made or given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneIntent:
    """Contents of the record. URIs are without credentials."""

    KIND: ClassVar = "clone"
    table_id: UUID
    """The clone's table id."""
    source_uri: str
    source_id: UUID
    checkpoint: str | None
    """Name of the checkpoint to clone; None clones the current source."""
    deep: bool
    wal_uri: str | None

    @property
    def pin(self) -> str:
        """Name of the checkpoint on the source that the clone reads: the named one, or its own."""
        return f"clone-{self.table_id}" if self.checkpoint is None else self.checkpoint

    @property
    def outcome(self) -> str:
        """The slot at the destination that must be taken before the clone becomes a table, and before it is removed
        (R20). It stays, because a sleeping caller may still come.
        """
        return f"{OUTCOMES}{self.table_id}"

    @property
    def tag(self) -> str:
        """The Lance tag on the source that protects the files which a shallow clone shares."""
        return f"headgate-clone-{self.table_id}"


@dataclass(frozen=True, slots=True)
class _GivenUp:
    KIND: ClassVar = "clone abandoned"
    table_id: UUID
    shards: tuple[UUID, ...]


def read_intent(store: ObjectStore) -> CloneIntent | None:
    """The intent at a destination, None if there is none. Raises Corrupt, or InvalidInput if a newer
    release wrote it.
    """
    try:
        return records.decode(CloneIntent, store.get(KEY), "The record of a clone")
    except NotFound:
        return None
    except HeadgateError as error:
        error.with_context(target=store.uri, key=KEY)
        raise


def put_intent(store: ObjectStore, wanted: CloneIntent) -> CloneIntent:
    """Put the intent, or return an equal earlier one. Raises InvalidInput if another intent exists."""
    try:
        store.put_if_absent(KEY, records.encode(wanted))
        return wanted
    except AlreadyExists:
        stored = read_intent(store)
        if stored is None:
            raise
    return same_call(stored, wanted, store.uri)


def put_given_up(store: ObjectStore, intent: CloneIntent, shard_ids: Iterable[UUID]) -> tuple[UUID, ...]:
    """Mark the clone as abandoned, once. Returns the shards named in the mark."""
    named = tuple(shard_ids)
    data = records.encode(_GivenUp(intent.table_id, named))
    try:
        store.put_if_absent(GIVEN_UP, data)
        return named
    except AlreadyExists:
        return read_given_up(store) or named


def read_given_up(store: ObjectStore) -> tuple[UUID, ...] | None:
    """The shards of a clone that is being removed; None if no removal is under way. Raises Corrupt."""
    try:
        data = store.get(GIVEN_UP)
        return records.decode(_GivenUp, data, "The mark of an abandoned clone").shards
    except NotFound:
        return None
    except HeadgateError as error:
        error.with_context(target=store.uri, key=GIVEN_UP)
        raise


def forget_given_up(store: ObjectStore) -> None:
    """Delete the mark, the last file of an abandoned clone."""
    delete(store, GIVEN_UP, "clone")


def same_call(stored: CloneIntent, wanted: CloneIntent, target: str) -> CloneIntent:
    """Returns the stored intent. Raises InvalidInput unless both describe the same clone."""
    differing = [
        f"{name} is {getattr(stored, name)}, got {getattr(wanted, name)}"
        for name in ("source_id", "checkpoint", "deep", "wal_uri")
        if getattr(stored, name) != getattr(wanted, name)
    ]
    if differing:
        raise InvalidInput(
            f"Another clone was started at {target}: {'; '.join(differing)}.",
            source=stored.source_uri,
            table_id=str(stored.table_id),
            advice="choose another URI, repeat the call that started it, or delete its files; nothing was written",
        )
    return stored
