"""How JSON fills one Arrow type, and short error texts for values that do not fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

SAMPLE = 40
"""Maximum characters of a value in an error: enough to find it, too few to leak a document."""

ERROR_CHARS = 80
"""Maximum characters of an Arrow error, because it may repeat the value."""


class Unfit(Exception):
    """A value does not fit its column. The text names the column and the reason. `rows`, if known, marks exactly the
    rows of the column to which it applies.
    """

    def __init__(self, why: str, rows: pa.Array | None = None) -> None:
        super().__init__(why)
        self.rows = rows


class Unsure(Exception):
    """Python's reader cannot judge the record; only the whole-column reader can."""


@dataclass(frozen=True)
class JsonType(ABC):
    """One Arrow type. Each subclass has its rule twice, side by side: for a column and for a value.

    `pyarrow.json` reads a column as its *stand-in* type: the type itself if pyarrow reads it strictly, otherwise
    another type, such as text. `finish` converts that to the wanted type; the two together decide. `read` checks one
    value as Python parsed it, and refuses only what the two also refuse: it finds bad records if the text of a column
    cannot be parsed, and says what is wrong with them.
    """

    kind: pa.DataType

    @property
    def parts(self) -> tuple[JsonType, ...]:
        """The nested types."""
        return ()

    @property
    def by_record(self) -> bool:
        """True if pyarrow.json cannot read it: its column is built from `read`, row by row."""
        return any(part.by_record for part in self.parts)

    @property
    def stand_in(self) -> pa.DataType:
        """The type in which a column is first read. All of it is nullable, because pyarrow.json refuses a null struct
        that has a required child.
        """
        return self.kind

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        """Convert the stand-in column to the type. A value that does not fit exactly is never rounded, wrapped, shifted
        or dropped. Raises Unfit.
        """
        return array

    @abstractmethod
    def read(self, value: Any, path: str) -> Any:
        """Check a value (not null, at this path), and return the value for the stand-in. Raises Unfit."""

    def holds(self, what: type[JsonType]) -> bool:
        """True if the type or a nested type is of this class."""
        return isinstance(self, what) or any(part.holds(what) for part in self.parts)


class NumberText(float):
    """A number with a fraction or exponent, with its text: decimals are made from the text."""

    text: str

    def __new__(cls, text: str) -> NumberText:
        made = super().__new__(cls, text)
        made.text = text
        return made


# -- error texts ---------------------------------------------------------------------


def wrong(path: str, wanted: str, value: Any) -> Unfit:
    """The error for a value of the wrong kind."""
    sample = "" if isinstance(value, dict | list | bool) else f" {shown(value)}"
    return Unfit(f"column {path!r}: wanted {wanted}, got {noun(value)}{sample}")


def noun(value: Any) -> str:
    """The value's kind, in JSON's terms."""
    for kind, name in ((bool, "a boolean"), (str, "a string"), (dict, "an object"), (list, "an array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "a number"


def shown(value: Any) -> str:
    """The beginning of a value, printable."""
    text = value if isinstance(value, str) else value.text if isinstance(value, NumberText) else _digits(value)
    printable = ascii(text[:SAMPLE])[1:-1]
    return repr(text) if len(text) <= SAMPLE and len(printable) <= SAMPLE else f"'{printable[:SAMPLE]}…'"


def clipped(text: str) -> str:
    """The beginning of an Arrow error, printable."""
    printable = ascii(text)[1:-1]
    return printable if len(printable) <= ERROR_CHARS else printable[: ERROR_CHARS - 1] + "…"


def _digits(value: Any) -> str:
    # str() of an int above 4300 digits raises.
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >> 256 else str(value)
