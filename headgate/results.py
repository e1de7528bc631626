"""Results of verify, fsck, recover and rewind: readable, and convertible to a dict."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any


class Result:
    """A frozen dataclass with `to_dict`, the JSON that the command of the same name prints."""

    __slots__ = ()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        pass

    def __repr__(self) -> str:
        shown = (f"{name}={_shown(value)}" for name, value in self.to_dict().items() if value not in (None, [], {}))
        return f"{type(self).__name__}({', '.join(shown)})"


def _shown(value: Any) -> str:
    """A short form; lists show their length."""
    if isinstance(value, list):
        return f"[{len(value)} items]" if len(value) > 1 or isinstance(value[0], dict) else repr(value)
    return f"{{{', '.join(map(str, value))}}}" if isinstance(value, dict) else repr(value)
