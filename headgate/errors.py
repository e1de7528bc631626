"""All error classes, one tree.

Every error says what happened, where (table, shard, position, epochs) and what to do next. Callers branch on the class,
never on the text. Every class can be pickled with all its fields, because errors travel from Spark workers to the
driver.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar


class HeadgateError(Exception):
    """Base class of all headgate errors.

    `what` is one sentence. The keyword fields say where it happened; None fields are left out of the text. `detail`
    carries further facts as key=value.
    """

    next_step: ClassVar[str] = "Read the message; the fields name the place."

    def __init__(
        self,
        what: str,
        *,
        table: str | None = None,
        shard: str | None = None,
        position: int | None = None,
        epoch: int | None = None,
        stored_epoch: int | None = None,
        advice: str | None = None,
        **detail: Any,
    ) -> None:
        self.what = what
        self.table = table
        self.shard = shard
        self.position = position
        self.epoch = epoch
        self.stored_epoch = stored_epoch
        self.advice = advice
        self.detail = detail
        super().__init__(what)

    def fields(self) -> dict[str, Any]:
        """The fields that are set, in the order they are printed."""
        named = {
            "table": self.table,
            "shard": self.shard,
            "position": self.position,
            "epoch": self.epoch,
            "stored_epoch": self.stored_epoch,
            **self.detail,
        }
        return {key: value for key, value in named.items() if value is not None}

    def with_context(self, **where: Any) -> HeadgateError:
        """The same error with missing fields filled in by a caller who knows them."""
        for key, value in where.items():
            if key in ("table", "shard", "position", "epoch", "stored_epoch", "advice"):
                if getattr(self, key) is None:
                    setattr(self, key, value)
            else:
                self.detail.setdefault(key, value)
        return self

    def to_json(self) -> dict[str, Any]:
        """The error as JSON values, to send it as text; `from_json` reads it back."""
        return {"class": type(self).__name__, "what": self.what, "advice": self.advice, "fields": self.fields()}

    def __str__(self) -> str:
        facts = ", ".join(f"{key}={value}" for key, value in self.fields().items())
        place = f" [{facts}]" if facts else ""
        return f"{self.what}{place} Next: {self.advice or self.next_step}"

    def __reduce__(self) -> tuple[Any, ...]:
        state = {
            "table": self.table,
            "shard": self.shard,
            "position": self.position,
            "epoch": self.epoch,
            "stored_epoch": self.stored_epoch,
            "advice": self.advice,
            **self.detail,
        }
        return (_rebuild, (type(self), self.what, state))


def from_json(data: dict[str, Any]) -> HeadgateError:
    """The error that `to_json` wrote. An unknown class becomes HeadgateError."""
    known = {cls.__name__: cls for cls in _all_classes(HeadgateError)}
    fields = {key: value for key, value in data.get("fields", {}).items() if key != "advice"}
    return known.get(data["class"], HeadgateError)(data["what"], advice=data.get("advice"), **fields)


def _all_classes(cls: type[HeadgateError]) -> list[type[HeadgateError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _all_classes(child))]


def _rebuild(cls: type[HeadgateError], what: str, state: dict[str, Any]) -> HeadgateError:
    return cls(what, **state)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a mistyped one, for error messages."""
    names = list(known)
    same = [one for one in names if one.casefold() == name.casefold()]
    return next(iter(same or difflib.get_close_matches(name, names, n=1)), None)


class InvalidInput(HeadgateError):
    """The arguments are invalid. Nothing was changed. Correct the call."""

    next_step = "correct the call; nothing was written"


class WalStoreMismatch(InvalidInput):
    """The given WAL store is not the one that the table records. Nothing was changed."""

    next_step = "leave wal_uri out, or pass the recorded one; nothing was written"


class MissingExtra(InvalidInput):
    """An optional package is not installed. Nothing was changed."""

    next_step = "install the extra that the message names; nothing was written"


class Fenced(HeadgateError):
    """Another writer took over the shard, or the table was dropped. Final: this writer never writes again."""

    next_step = (
        "stop this writer; another one owns the shard now. Open the shard again only if you want to stop the other "
        "writer"
    )


class Poisoned(HeadgateError):
    """A write failed, and its outcome may be unknown. Open the shard again; opening replays the WAL."""

    next_step = "close this writer and open the shard again; acknowledged rows are safe"


class OutcomeUnknown(Poisoned):
    """The store did not answer a write. The rows may be stored and visible, or not."""

    next_step = (
        "do not write these rows again yet: open the shard again, then ask table.landed(entry_id); "
        "writer.take_pending() returns entry id and rows"
    )


class Closed(HeadgateError):
    """The writer is already closed."""

    next_step = "open a new writer"


class DataLoss(HeadgateError):
    """A durable object is missing. Never skipped silently."""

    next_step = "restore the missing object from a backup or a clone; `headgate shard show` lists what is lost"


class Corrupt(DataLoss):
    """An object exists, but its bytes are not the bytes that were written."""

    next_step = (
        "restore this object from a backup or a clone; do not delete it: readers would no longer find the objects "
        "after it"
    )


class Expired(HeadgateError):
    """Data that was held for a reader was removed before the reader got to it. The table is intact; the reader was too
    slow.
    """

    next_step = "check that the store is reachable and healthy; the chained exception has its answer"


class StoreError(HeadgateError):
    """An object store request failed. The cause is chained."""

    next_step = "see the cause above"


class NotFound(StoreError):
    """The object does not exist."""

    next_step = "check the URI and the name"


class AlreadyExists(StoreError):
    """put_if_absent found an object under that name, perhaps its own after a lost response."""

    next_step = "read the object there and compare its id with the id that was to be written"


class PermissionDenied(StoreError):
    """The store rejected the credentials or the operation."""

    next_step = "check the credentials and the permissions of the bucket or directory"


class StoreFull(StoreError):
    """No space, quota or file descriptors left."""

    next_step = "free space or raise the limit; no partial object was left behind"


class Transient(StoreError):
    """The store is unreachable or busy. The outcome of a write is unknown until it is read back."""

    next_step = "try again; if it persists, check that the store is reachable"


class ForkedProcess(StoreError):
    """The parent of this process used the store's client, so the client does not work in this process."""

    next_step = (
        "open the store only in the process that uses it, never before a fork; with multiprocessing use the start "
        "method spawn"
    )
