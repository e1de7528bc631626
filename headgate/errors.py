"""The one tree of errors.

Every error says what happened, where (table, shard, position, epochs) and what
to do next. Callers branch on the class, never on the text. Every class survives
pickling with its fields, because errors cross from Spark workers to the driver.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar


class HeadgateError(Exception):
    """Base of all errors of this package.

    `what` is one sentence. The keyword fields say where; those that are None
    are left out of the text. `detail` carries further facts as key=value.
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
        """The known facts, in the order they are printed."""
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
        """The same error with facts filled in that were unknown where it was raised."""
        for key, value in where.items():
            if key in ("table", "shard", "position", "epoch", "stored_epoch", "advice"):
                if getattr(self, key) is None:
                    setattr(self, key, value)
            else:
                self.detail.setdefault(key, value)
        return self

    def to_json(self) -> dict[str, Any]:
        """The error as plain values, for where it travels as text; see `from_json`."""
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
    """The error that `to_json` described; an unknown class becomes the base class."""
    known = {cls.__name__: cls for cls in _all_classes(HeadgateError)}
    fields = {key: value for key, value in data.get("fields", {}).items() if key != "advice"}
    return known.get(data["class"], HeadgateError)(data["what"], advice=data.get("advice"), **fields)


def _all_classes(cls: type[HeadgateError]) -> list[type[HeadgateError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _all_classes(child))]


def _rebuild(cls: type[HeadgateError], what: str, state: dict[str, Any]) -> HeadgateError:
    return cls(what, **state)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a wrong one is probably a slip for, for messages and advice."""
    names = list(known)
    same = [one for one in names if one.casefold() == name.casefold()]
    return next(iter(same or difflib.get_close_matches(name, names, n=1)), None)


class InvalidInput(HeadgateError):
    """The caller asked for something that cannot be; nothing was changed. Fix the call."""

    next_step = "correct the call; nothing was written"


class WalStoreMismatch(InvalidInput):
    """A table was opened with another WAL store than its own; nothing was changed."""

    next_step = "leave wal_uri out, or give the recorded one; nothing was written"


class MissingExtra(InvalidInput):
    """A feature needs a package that is not installed; nothing was changed."""

    next_step = "install the extra that the message names; nothing was written"


class Fenced(HeadgateError):
    """Another writer took the shard over. Terminal: this writer never writes again."""

    next_step = "stop this writer; a successor owns the shard. Open again only if the successor should stop"


class Poisoned(HeadgateError):
    """A write could not be finished and its outcome may be unknown. Reopen and replay."""

    next_step = "close this writer and open the shard again; what was acknowledged is safe"


class OutcomeUnknown(Poisoned):
    """Whether these rows were stored is unknown: a request was sent and not answered. They may be visible."""

    next_step = (
        "do not put these rows again yet: open the shard again, then ask table.landed(entry_id);"
        " writer.take_pending() has entry id and rows"
    )


class Closed(HeadgateError):
    """The writer was closed before the call."""

    next_step = "open a new writer"


class DataLoss(HeadgateError):
    """Something that was durable is missing. Never skipped silently."""

    next_step = "restore the missing object from a backup or a clone, or ask `headgate shard show` what is lost"


class Corrupt(DataLoss):
    """An object is there, but its bytes are not what was written."""

    next_step = "restore this object from a backup or a clone; do not delete it, later ones would be hidden"


class Expired(HeadgateError):
    """What was held for a reader was let go before it had read it. The table is whole; the reader is too late."""

    next_step = "read the table anew; hold it longer next time (option pinFor)"


class StoreError(HeadgateError):
    """An object store did not do what it was asked. The cause is chained."""

    next_step = "see the cause"


class NotFound(StoreError):
    """There is no object of that name."""

    next_step = "check the URI and the name"


class AlreadyExists(StoreError):
    """put_if_absent met an object of that name, perhaps its own after a lost response."""

    next_step = "read the object there and compare its id with the one that was being written"


class PermissionDenied(StoreError):
    """The store refused the credentials or the operation."""

    next_step = "check the credentials and the policy of the bucket or directory"


class StoreFull(StoreError):
    """No space, no quota or no file descriptors left."""

    next_step = "free space or raise the limit; nothing torn was left behind"


class Transient(StoreError):
    """The store is away or busy. The outcome of a write is unknown until it is read back."""

    next_step = "retry; if it lasts, check that the store can be reached"


class ForkedProcess(StoreError):
    """The store's client was used by the parent of this process and cannot work here."""

    next_step = "open the store only in the process that uses it, never before a fork"
