"""Every option of a stream, once: Python argument, name in `format("headgate")`, Spark default, parser, meaning.

Python arguments are snake_case, options camelCase, session defaults `spark.headgate.<option>`. What is given with
a stream comes before what the session says, which comes before the default here. Spark hands option names over in
lower case, so they are looked up in any case; a name that is not here is refused with the nearest that is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headgate.errors import InvalidInput

CONF_PREFIX = "spark.headgate."

DEFAULT_STREAM = "default"
"""The stream's name where neither it nor the query has one."""

_SIZE = re.compile(r"([0-9]+)\s*(?:([kmgt])i?)?b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Option:
    """One option, in all its spellings."""

    argument: str
    """In Python."""
    name: str
    """In `writeStream.option(name, …)`. One that ends in '.' is a family: what follows is the caller's."""
    parse: Callable[[str], Any]
    """From text. Raises ValueError that says what is allowed."""
    default: Any
    doc: str
    scope: Literal["stream", "query"] = "stream"
    """A query's own options (where it reads and writes) have no session default."""

    @property
    def conf(self) -> str | None:
        """Its session default's name."""
        return f"{CONF_PREFIX}{self.name}" if self.scope == "stream" else None

    @property
    def is_family(self) -> bool:
        """Whether it stands for all names that begin with its own."""
        return self.name.endswith(".")


def _text(value: str) -> str:
    return value


def _flag(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.strip().lower() == "true"


def _size(value: str) -> int:
    match = _SIZE.fullmatch(value.strip())
    if match is None or not int(match[1]):
        raise ValueError("a number of bytes above zero, such as 268435456 or 256m")
    return int(match[1]) << 10 * (" kmgt".index(match[2].lower()) if match[2] else 0)


def _one_of(*known: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in known:
            raise ValueError(" or ".join(known))
        return value

    return parse


OPTIONS: tuple[Option, ...] = (
    Option("table", "path", _text, None, "The table's URI, as in start(uri): absolute.", "query"),
    Option(
        "checkpoint_location",
        "checkpointLocation",
        _text,
        None,
        "Spark's checkpoint. A ShardSink finds it by itself, except on Spark Connect.",
        "query",
    ),
    Option("query_name", "queryName", _text, None, "The query's name, as Spark passes it on.", "query"),
    Option(
        "stream", "streamName", _text, None, f"Its name in the table; else the query's name, or {DEFAULT_STREAM!r}."
    ),
    Option(
        "decode",
        "decode",
        _one_of("json"),
        None,
        "How Kafka's values become rows of the table's columns; without it the frame's columns are the table's.",
    ),
    Option(
        "enable_memtable",
        "enableMemtable",
        _flag,
        True,
        "Whether maintenance flushes the stream's shards to SSTables. format('headgate') cannot: it writes WAL only.",
    ),
    Option(
        "on_bad_record",
        "onBadRecord",
        _one_of("dead_letter", "fail"),
        "dead_letter",
        "What a record that cannot become a row does: dead_letter keeps it aside, fail stops the stream.",
    ),
    Option(
        "sequence_by",
        "sequenceBy",
        _text,
        None,
        "For typed frames on tables with a key: the column that orders rows of one key.",
    ),
    Option("compression", "compression", _one_of("lz4", "zstd"), None, "Of the entries."),
    Option(
        "max_memtable_size",
        "maxMemtableSize",
        _size,
        256 << 20,
        "With MemTables: a shard is flushed to an SSTable when its unflushed entries pass this size.",
    ),
    Option(
        "max_entry_bytes",
        "maxEntryBytes",
        _size,
        256 << 20,
        "A shard's rows of one batch become one entry up to this size.",
    ),
    Option("storage_options", "storage.", _text, None, "For the object store, under pylance's names.", "query"),
    Option(
        "kafka",
        "kafka.",
        _text,
        None,
        "The cluster, as Spark's Kafka source takes it (kafka.bootstrap.servers …): needed only when a topic grows.",
        "query",
    ),
)


def parse_options(given: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The Python arguments that options say; what nobody said is left out.

    `defaults` are session defaults by option name, see `session_defaults`. Raises InvalidInput for an unknown
    name, with the nearest known one, and for a value that cannot be; the values of families are never shown.
    """
    found: dict[str, Any] = {}
    for name, text in {**_lowered(defaults or {}), **_lowered(given)}.items():
        option = _named(name)
        if option is None:
            raise _unknown(name, [known.name for known in OPTIONS], "option")
        if option.is_family:
            found.setdefault(option.argument, {})[name[len(option.name) :]] = text
            continue
        try:
            found[option.argument] = option.parse(text)
        except ValueError as error:
            raise InvalidInput(f"The option {option.name!r} is {error}, not {text[:80]!r}.") from None
    return found


def session_defaults(conf: Mapping[str, str]) -> dict[str, str]:
    """What a session's configuration says under `spark.headgate.`, by option name.

    Raises InvalidInput for an unknown name, with the nearest known one.
    """
    known = {option.conf.lower(): option for option in OPTIONS if option.conf is not None}
    found = {}
    for name, text in conf.items():
        if name.lower().startswith(CONF_PREFIX):
            option = known.get(name.lower())
            if option is None:
                raise _unknown(name, [option.conf for option in known.values() if option.conf], "Spark setting")
            found[option.name] = text
    return found


def _lowered(given: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in given.items()}


def _named(name: str) -> Option | None:
    for option in OPTIONS:
        known = option.name.lower()
        if name == known or (option.is_family and name.startswith(known) and len(name) > len(known)):
            return option
    return None


def _unknown(name: str, known: list[str], kind: str) -> InvalidInput:
    """The nearest is looked for in the option's name and in its Python argument, which is an easy slip."""
    spelled = {text.lower(): text for text in known}
    if kind == "option":
        spelled |= {option.argument: option.name for option in OPTIONS if option.argument not in spelled}
    near = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    advice = f"did you mean {spelled[near[0]]!r}?" if near else f"the {kind}s are {', '.join(known)}"
    return InvalidInput(f"There is no {kind} {name[:80]!r}.", advice=advice)
