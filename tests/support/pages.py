"""The pages of this repository and their fenced blocks, as text. How blocks are run: tests/project/doc_blocks.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_COMMENT = re.compile(r"<!-- (needs|exit|run by): (.+?) -->")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    tag: str
    text: str
    told: Mapping[str, str] = field(default_factory=dict)
    """What the comments above it say."""

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All that have blocks which must run."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    found += [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
    return [path.relative_to(ROOT).as_posix() for path in found if path.exists()]


def blocks_of(page: str) -> list[Block]:
    """Every fenced block of a page."""
    return list(_blocks(page, (ROOT / page).read_text().splitlines()))


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    told: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        number += 1
        if not line.startswith("```"):
            comment = _COMMENT.fullmatch(line)
            told = {**told, comment[1]: comment[2]} if comment else {}
            continue
        start, inside = number, []
        while number < len(lines) and lines[number].strip() != "```":
            inside.append(lines[number])
            number += 1
        assert number < len(lines), f"{page}:{start}: a block without an end"
        number += 1
        yield Block(page, start, line[3:].strip(), "\n".join(inside) + "\n", told)
        told = {}


def needs_of(page: str) -> set[str]:
    """What a page needs, by all its comments."""
    told = [block.told.get("needs", "") for block in blocks_of(page)]
    return {name.strip() for text in told for name in text.split(",") if name.strip()}


def blocks_run_by(test: str) -> list[Block]:
    """The blocks, of all pages, that name a file of tests as the one that runs them: for that file, by `__file__`."""
    name = Path(test).resolve().relative_to(ROOT).as_posix()
    found = [block for page in pages() for block in blocks_of(page) if block.told.get("run by") == name]
    assert found, f"no page says that {name} runs a block"
    return found


def commands_of(block: Block) -> list[str]:
    """The commands of a console block; a backslash at the end of a line goes on in the next."""
    joined = block.text.replace("\\\n", " ")
    commands = [line[2:].partition("  #")[0].strip() for line in joined.splitlines() if line.startswith("$ ")]
    assert commands, f"{block.place}: a console block without a command is text"
    return commands
