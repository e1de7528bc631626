"""How JSON fills one Arrow type, and what is wrong with a value that does not fit, in a few words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

SAMPLE = 40
"""Characters of a value that an error may show: enough to find it, too few to leak a document."""

ERROR_CHARS = 80
"""Longest text taken over from Arrow's errors: they may repeat the value."""


class Unfit(Exception):
    """A value does not fit its column. The text names the column and the reason; `rows` marks, where they are known,
    exactly the rows of the column to which it applies.
    """

    def __init__(self, why: str, rows: pa.Array | None = None) -> None:
        super().__init__(why)
        self.rows = rows


class Unsure(Exception):
    """Python's reader gives up on the record; only the whole-column reader can judge it."""


@dataclass(frozen=True)
class JsonType(ABC):
    """One Arrow type. Each subclass has the rule twice, side by side: for a column and for a value.

    `pyarrow.json` reads a column as its *stand-in* type (the type itself where its reading is strict, text where it is
    lenient or unable), and `finish` makes the wanted type of it: together they judge. `read` judges one value as Python
    parsed it, and refuses only what these refuse as well: it finds bad records among many where the text of a column
    cannot be parsed, and says what is wrong with them.
    """

    kind: pa.DataType

    @property
    def parts(self) -> tuple[JsonType, ...]:
        """The types inside."""
        return ()

    @property
    def by_record(self) -> bool:
        """Whether pyarrow.json cannot read it: its column is made of what `read` gives, row by row."""
        return any(part.by_record for part in self.parts)

    @property
    def stand_in(self) -> pa.DataType:
        """The type in which a column is first read: all of it nullable, because pyarrow.json refuses a null struct that
        has a required child.
        """
        return self.kind

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        """The stand-in column as a column of the type. A value that JSON does not hold exactly is never rounded,
        wrapped, shifted or dropped on the way. Raises Unfit.
        """
        return array

    @abstractmethod
    def read(self, value: Any, path: str) -> Any:
        """The value (not null, at this path) to build the stand-in from. Raises Unfit."""

    def holds(self, what: type[JsonType]) -> bool:
        """True if such a type is in it, at any depth."""
        return isinstance(self, what) or any(part.holds(what) for part in self.parts)


class NumberText(float):
    """A number with a fraction or an exponent, and its text: decimals are made of that."""

    text: str

    def __new__(cls, text: str) -> NumberText:
        made = super().__new__(cls, text)
        made.text = text
        return made


# -- words ---------------------------------------------------------------------------


def wrong(path: str, wanted: str, value: Any) -> Unfit:
    """A value of another kind than the one that is wanted."""
    sample = "" if isinstance(value, dict | list | bool) else f" {shown(value)}"
    return Unfit(f"column {path!r}: wanted {wanted}, got {noun(value)}{sample}")


def noun(value: Any) -> str:
    """What JSON calls the value."""
    for kind, name in ((bool, "a boolean"), (str, "a string"), (dict, "an object"), (list, "an array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "a number"


def shown(value: Any) -> str:
    """The start of a value, printable."""
    text = value if isinstance(value, str) else value.text if isinstance(value, NumberText) else _digits(value)
    printable = ascii(text[:SAMPLE])[1:-1]
    return repr(text) if len(text) <= SAMPLE and len(printable) <= SAMPLE else f"'{printable[:SAMPLE]}…'"


def clipped(text: str) -> str:
    """The start of an error of Arrow's, printable."""
    printable = ascii(text)[1:-1]
    return printable if len(printable) <= ERROR_CHARS else printable[: ERROR_CHARS - 1] + "…"


def _digits(value: Any) -> str:
    # str() of an int above 4300 digits raises.
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >> 256 else str(value)
