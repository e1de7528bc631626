"""What operators' functions return: values that show themselves, in plain words and as a dict."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any


class Result:
    """A frozen dataclass with `to_dict`, which is what the command of the same name prints with `--output json`."""

    __slots__ = ()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values: texts, numbers, lists and dicts."""

    def __repr__(self) -> str:
        shown = (f"{name}={_shown(value)}" for name, value in self.to_dict().items() if value not in (None, [], {}))
        return f"{type(self).__name__}({', '.join(shown)})"


def _shown(value: Any) -> str:
    """Short: of a list, how much is in it."""
    if isinstance(value, list):
        return f"[{len(value)} of them]" if len(value) > 1 or isinstance(value[0], dict) else repr(value)
    return f"{{{', '.join(map(str, value))}}}" if isinstance(value, dict) else repr(value)
