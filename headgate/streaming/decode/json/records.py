"""Reads one record at a time: finds the bad records among many, and says what is wrong with each."""

from __future__ import annotations

import json
from typing import Any

from headgate.streaming.decode.json.base import NumberText, Unfit, Unsure, noun
from headgate.streaming.decode.json.coerce import TextFromNumber
from headgate.streaming.decode.json.nested import Fields, Twice
from headgate.streaming.decode.json.scalars import Exact


class RecordReader:
    """Parses records with Python's json, and checks them by the columns' rules (see JsonType)."""

    def __init__(self, columns: Fields) -> None:
        self._columns = columns
        self._by_record = Fields(tuple(field for field in columns.fields if field.type.by_record))
        by_text = any(field.type.holds(kind) for field in columns.fields for kind in (Exact, TextFromNumber))
        self._json = json.JSONDecoder(object_pairs_hook=_object, parse_float=NumberText if by_text else None)

    def read(self, text: str) -> None:
        """Check that the record fits. Raises Unfit, or Unsure."""
        self._columns.read(self.load(text))

    def by_record(self, text: str) -> dict[str, Any]:
        """The columns that pyarrow.json cannot read, as values of their stand-ins. Raises Unfit, or Unsure."""
        return self._by_record.read(self.load(text))

    def load(self, text: str) -> dict[str, Any]:
        """The record as one JSON object. Raises Unfit, or Unsure."""
        try:
            record = self._json.decode(text)
        except RecursionError:
            raise Unsure("nested too deeply") from None
        except json.JSONDecodeError as error:
            # pyarrow.json also accepts Inf and -NaN, which are harmless in an ignored field.
            if "Inf" in text or "NaN" in text:
                raise Unsure(f"not JSON: {error.msg}") from None
            raise Unfit(f"not JSON: {error.msg} at character {error.pos}") from None
        except ValueError:
            raise Unsure("a number has too many digits") from None
        if not isinstance(record, dict):
            raise Unfit(f"not a JSON object, but {noun(record)}")
        return record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    twice = Twice(made)
    seen = [name for name, _ in pairs]
    twice.names = frozenset(name for name in made if seen.count(name) > 1)
    return twice
