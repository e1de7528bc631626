"""The generations that native noted in WAL entries, and the last position of each.

Native and headgate skip entries of a generation below the manifest's, because their rows count as flushed. So a flush
of a generation must reach the last entry that notes it or a lower one; the entries before that may note none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GenerationNotes:
    """Per generation the last position whose entry notes it."""

    last: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int | None]]) -> GenerationNotes:
        """From ascending positions, each with the generation that its entry notes (or None)."""
        return cls({generation: position for position, generation in entries if generation is not None})

    def then(self, later: GenerationNotes) -> GenerationNotes:
        """These notes plus those of entries at higher positions."""
        return GenerationNotes({**self.last, **later.last})

    def since(self, generation: int) -> GenerationNotes:
        """Without the lower generations, which are skipped."""
        return GenerationNotes({noted: position for noted, position in self.last.items() if noted >= generation})

    def reach(self, generation: int | None = None) -> int:
        """The last position that notes this generation or a lower one (None: any); -1 if none does."""
        return max((at for noted, at in self.last.items() if generation is None or noted <= generation), default=-1)
