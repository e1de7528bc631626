"""What the commit log of a stream holds, as values and as JSON that people can read.

Promises:
1. What `decode` returns is what was encoded; damaged bytes raise Corrupt.
2. A record of an older format is read. A newer one raises InvalidInput, which names the
   release that wrote it: its rules are unknown here.
3. Keys that this release does not know are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, TypeAlias, cast
from uuid import UUID

import xxhash

from headgate.errors import Corrupt, InvalidInput
from headgate.shards.wal.entry import SourceRange

Mode = Literal["wal", "memtable"]
Run: TypeAlias = tuple[int, int]
"""Positions from the first to the last, both included."""

FORMAT = 3
"""Newest version of the JSON that is read. Raised when an older release would misread what a newer one means.

2 has rewinds, 3 schema records. Content says the lowest version that it needs, so that a release without rewinds reads
a log without.
"""
FIRST_FORMAT, REWIND_FORMAT = 1, 2

DEAD_LETTERS = "dead-letters:"
"""What the names of dead-letter logs begin with, in records."""


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """What a driver holds of one shard: epoch, claim id, and the position of its barrier."""

    shard_id: UUID
    epoch: int
    claim_id: str
    barrier: int


@dataclass(frozen=True, slots=True)
class ShardPart:
    """What one batch wrote to one shard (or dead-letter log): the positions and the attempt that count."""

    shard_id: UUID
    attempt_id: str
    positions: tuple[int, ...]
    rows: int
    nbytes: int

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.positions, self.positions[1:], strict=False))
        if not self.positions or not rising or self.positions[0] < 0:
            raise InvalidInput(f"The positions of a batch must rise and be there, not {self.positions[:20]}.")


@dataclass(frozen=True, slots=True)
class OpaqueRange:
    """Progress of a source that is not Kafka, as Spark writes it. `start` is None where it begins.

    `source` is the number or name that the source has in Spark's checkpoint.
    """

    source: str
    start: str | None
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch as its driver would commit it. A batch without rows has no shards."""

    query_id: str
    batch_id: int
    sources: tuple[SourceRange, ...] = ()
    opaque: tuple[OpaqueRange, ...] = ()
    shards: Mapping[str, ShardPart] = field(default_factory=dict)
    dead_letters: Mapping[str, ShardPart] = field(default_factory=dict)
    mode: Mode = "wal"

    @property
    def rows(self) -> int:
        """Rows in the shards; dead letters are not among them."""
        return sum(part.rows for part in self.shards.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the entries in the shards."""
        return sum(part.nbytes for part in self.shards.values())

    @property
    def is_replay(self) -> bool:
        """Whether its rows are of the stream's own dead letters: then it is no batch of a query, and says nothing of
        where a source stands.
        """
        return bool(self.opaque) and not self.sources and all(is_dead_letters(part.source) for part in self.opaque)

    def parts(self) -> Iterable[tuple[str, ShardPart]]:
        """Shards, then dead-letter logs: visibility treats them alike."""
        yield from self.shards.items()
        yield from self.dead_letters.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord(Batch):
    """The commit record: what it lists is visible, all of it at once."""

    record_id: str
    sequence: int
    stream: str
    open_id: str
    """The open record under which it was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRecord:
    """A driver came, and every earlier one is fenced from here on."""

    record_id: str
    sequence: int
    stream: str
    query_id: str
    shards: Mapping[str, ShardClaim]
    opened_at: str = ""
    """For people. Nothing depends on it."""
    decoder: Mapping[str, Any] | None = None
    """How records become rows from here on, see `streaming.decode.provenance`; None: as the record before said."""
    ends: tuple[tuple[str, int, int], ...] = ()
    """With a decoder: per topic and partition, where the first batch that it decodes starts."""

    def claim_of(self, shard_id: UUID) -> ShardClaim | None:
        """What the driver holds of a shard."""
        return next((claim for claim in self.shards.values() if claim.shard_id == shard_id), None)


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a partition stood at a rewind, and where it goes on. `before` is None where the stream had not read it."""

    topic: str
    partition: int
    before: int | None
    after: int

    @property
    def again(self) -> int:
        """Offsets that will be read a second time."""
        return 0 if self.before is None else max(0, self.before - self.after)

    @property
    def skipped(self) -> int:
        """Offsets that will not be read, as far as is known: of a partition that is new, nothing is."""
        return 0 if self.before is None else max(0, self.after - self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRecord:
    """Somebody moved the stream, deliberately: the next batch starts at other offsets than the last one ended at."""

    record_id: str
    sequence: int
    stream: str
    open_id: str
    """The open record under which it was put."""
    query_id: str
    offsets: tuple[Moved, ...]
    """Every partition that the next batch is judged by, those that stay included."""
    rewound_at: str = ""
    """As `by` and `reason` for people. Nothing depends on them."""
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRecord:
    """The table's columns changed before it was put: whoever comes to it reads them again (R22).

    It belongs to no driver and fences nobody, and carries no columns: the base has them.
    """

    record_id: str
    sequence: int
    stream: str
    changed_at: str = ""
    """For people. Nothing depends on it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of a partition, from its start until a rewind ended it."""

    topic: str
    partition: int
    start: int | None
    """None: an earlier release folded that away."""
    until: int
    ended_by: int
    """The sequence of the rewind."""


@dataclass(frozen=True, slots=True)
class FoldedShard:
    """What is left of a shard's listed positions: those above `replay_after`, as runs without attempt ids.

    A position names one entry for ever, so the attempt id was only a second proof.
    `last` is the highest position that any record ever listed, flushed or not.
    """

    shard: str
    replay_after: int
    last: int
    visible: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """All records up to `sequence` in one: readers ignore those (R6)."""

    sequence: int
    stream: str
    opened: OpenRecord | None
    last: BatchRecord | None
    ends: tuple[tuple[str, int, int], ...]
    """Per topic and partition, where the next batch must start."""
    opaque_ends: tuple[tuple[str, str], ...]
    shards: Mapping[UUID, FoldedShard]
    starts: tuple[tuple[str, int, int], ...] = ()
    """Per topic and partition, where the first batch since a rewind started; left out where an earlier release folded
    that away.
    """
    rewound: RewindRecord | None = None
    """The last rewind."""
    passes: tuple[Pass, ...] = ()
    """What was read before rewinds."""
    changed: int = 0
    """The sequence of the last schema record; 0: there was none."""


Record: TypeAlias = OpenRecord | BatchRecord | RewindRecord | SchemaRecord


def is_dead_letters(source: str) -> bool:
    """Whether a source is a dead-letter log of the stream. Spark's sources never have such a name."""
    return source.startswith(DEAD_LETTERS)


# -- encoding ------------------------------------------------------------------


def encode(record: Record | Fold) -> bytes:
    """One key a line, values compact."""
    return text_of(plain(record), format_of(record))


def format_of(*records: Record | Fold) -> int:
    """The lowest version whose readers understand the records."""
    if any(isinstance(one, SchemaRecord) for one in records):
        return FORMAT
    with_rewinds = any(isinstance(one, RewindRecord) or getattr(one, "rewound", None) for one in records)
    return REWIND_FORMAT if with_rewinds else FIRST_FORMAT


def text_of(content: Mapping[str, Any], version: int = FIRST_FORMAT) -> bytes:
    """JSON with a format, the release that wrote it and a checksum: one key a line, values compact."""
    fields = {"format": version, "release": release(), **content}
    fields["checksum"] = _checksum(fields)
    lines = ",\n".join(f"  {json.dumps(key)}: {_compact(value)}" for key, value in fields.items())
    return f"{{\n{lines}\n}}\n".encode()


@cache
def release() -> str:
    """The release of headgate that runs."""
    try:
        return f"headgate {version('headgate')}"
    except PackageNotFoundError:
        return "headgate from source"


def plain(record: Record | Fold) -> dict[str, Any]:
    """The record as JSON values."""
    if isinstance(record, OpenRecord):
        return {
            "kind": "open",
            "stream": record.stream,
            "sequence": record.sequence,
            "record_id": record.record_id,
            "query_id": record.query_id,
            "opened_at": record.opened_at,
            "shards": {
                name: {
                    "shard_id": str(claim.shard_id),
                    "epoch": claim.epoch,
                    "claim_id": claim.claim_id,
                    "barrier": claim.barrier,
                }
                for name, claim in record.shards.items()
            },
            **_plain_decoder(record),
        }
    if isinstance(record, BatchRecord):
        return {
            "kind": "batch",
            "stream": record.stream,
            "sequence": record.sequence,
            "record_id": record.record_id,
            "open_id": record.open_id,
            "query_id": record.query_id,
            "batch_id": record.batch_id,
            "mode": record.mode,
            "rows": record.rows,
            "nbytes": record.nbytes,
            "sources": [[r.topic, r.partition, r.start, r.until] for r in record.sources],
            "opaque": [[r.source, r.start, r.until] for r in record.opaque],
            "shards": {name: _plain_part(part) for name, part in record.shards.items()},
            "dead_letters": {name: _plain_part(part) for name, part in record.dead_letters.items()},
        }
    if isinstance(record, RewindRecord):
        return {
            "kind": "rewind",
            "stream": record.stream,
            "sequence": record.sequence,
            "record_id": record.record_id,
            "open_id": record.open_id,
            "query_id": record.query_id,
            "rewound_at": record.rewound_at,
            "by": record.by,
            "reason": record.reason,
            "offsets": [[one.topic, one.partition, one.before, one.after] for one in record.offsets],
        }
    if isinstance(record, SchemaRecord):
        return {
            "kind": "schema",
            "stream": record.stream,
            "sequence": record.sequence,
            "record_id": record.record_id,
            "changed_at": record.changed_at,
        }
    return {
        "kind": "fold",
        "stream": record.stream,
        "sequence": record.sequence,
        "opened": None if record.opened is None else plain(record.opened),
        "last": None if record.last is None else plain(record.last),
        "starts": [list(start) for start in record.starts],
        "ends": [list(end) for end in record.ends],
        "opaque_ends": [list(end) for end in record.opaque_ends],
        "shards": {
            str(shard_id): {
                "shard": folded.shard,
                "replay_after": folded.replay_after,
                "last": folded.last,
                "visible": [list(run) for run in folded.visible],
            }
            for shard_id, folded in record.shards.items()
        },
        **({} if record.rewound is None else _plain_rewinds(record, record.rewound)),
        **({"changed": record.changed} if record.changed else {}),
    }


def _plain_decoder(record: OpenRecord) -> dict[str, Any]:
    if record.decoder is None:
        return {}
    return {"decoder": dict(record.decoder), "ends": [list(end) for end in record.ends]}


def _plain_rewinds(fold: Fold, rewound: RewindRecord) -> dict[str, Any]:
    passes = [[one.topic, one.partition, one.start, one.until, one.ended_by] for one in fold.passes]
    return {"rewound": plain(rewound), "passes": passes}


def _plain_part(part: ShardPart) -> dict[str, Any]:
    return {
        "shard_id": str(part.shard_id),
        "attempt_id": part.attempt_id,
        "positions": list(part.positions),
        "rows": part.rows,
        "nbytes": part.nbytes,
    }


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(", ", ": "))


def _checksum(fields: Mapping[str, Any]) -> str:
    """Of everything but itself, in one fixed spelling, so that white space and key order do not count."""
    rest = {key: value for key, value in fields.items() if key != "checksum"}
    return xxhash.xxh3_64_hexdigest(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


# -- decoding ------------------------------------------------------------------


def decode_record(data: bytes | memoryview) -> Record:
    """A record of the log. Raises Corrupt, and InvalidInput for a newer format."""
    record = _decode(data)
    if isinstance(record, Fold):
        raise Corrupt("A fold stands where a record of the commit log should be.")
    return record


def decode_fold(data: bytes | memoryview) -> Fold:
    """A fold. Raises Corrupt, and InvalidInput for a newer format."""
    fold = _decode(data)
    if not isinstance(fold, Fold):
        raise Corrupt("A record stands where a fold of the commit log should be.")
    return fold


def stream_of(data: bytes | memoryview) -> str:
    """The stream that a record or fold belongs to. Raises as the others do."""
    return _decode(data).stream


def fields_of(data: bytes | memoryview, what: str = "A record of the commit log") -> dict[str, Any]:
    """What `text_of` was given. Raises Corrupt, and InvalidInput for a newer format."""
    try:
        fields = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{what} is not JSON.") from error
    return checked(fields, what)


def checked(fields: Any, what: str = "A record of the commit log") -> dict[str, Any]:
    """The same, parsed already. Raises as `fields_of` does."""
    if not isinstance(fields, dict) or not _is_number(fields.get("format")) or fields["format"] < 1:
        raise Corrupt(f"{what} does not say its format.")
    if fields["format"] > FORMAT:
        raise InvalidInput(
            f"{what} has format {fields['format']}, written by {fields.get('release')!s:.80}; "
            f"this is {release()}, which reads up to format {FORMAT}.",
            advice="use that release of headgate or a later one; nothing was written",
        )
    if fields.get("checksum") != _checksum(fields):
        raise Corrupt(f"{what} does not match its checksum.")
    return fields


def record_from(fields: Any) -> Record:
    """The record of JSON that is parsed already. Raises Corrupt, and InvalidInput for a newer format."""
    record = _understood(checked(fields))
    if isinstance(record, Fold):
        raise Corrupt("A fold stands where a record of the commit log should be.")
    return record


def _decode(data: bytes | memoryview) -> Record | Fold:
    return _understood(fields_of(data))


def _understood(fields: Mapping[str, Any]) -> Record | Fold:
    try:
        return _record(fields)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as error:
        raise Corrupt(f"A record of the commit log cannot be understood: {error!r:.200}.") from error


def _record(fields: Mapping[str, Any]) -> Record | Fold:
    kind = fields["kind"]
    if kind == "open":
        return _open(fields)
    if kind == "batch":
        return _batch(fields)
    if kind == "rewind":
        return _rewind(fields)
    if kind == "schema":
        return SchemaRecord(
            record_id=_text(fields["record_id"]),
            sequence=_number(fields["sequence"]),
            stream=_text(fields["stream"]),
            changed_at=_text(fields["changed_at"]),
        )
    if kind == "fold":
        return fold_from(fields)
    raise ValueError(f"kind {kind!r}")


def _open(fields: Mapping[str, Any]) -> OpenRecord:
    return OpenRecord(
        record_id=_text(fields["record_id"]),
        sequence=_number(fields["sequence"]),
        stream=_text(fields["stream"]),
        query_id=_text(fields["query_id"]),
        opened_at=_text(fields.get("opened_at", "")),
        shards={
            name: ShardClaim(
                UUID(claim["shard_id"]), _number(claim["epoch"]), _text(claim["claim_id"]), _number(claim["barrier"])
            )
            for name, claim in fields["shards"].items()
        },
        decoder=None if fields.get("decoder") is None else dict(fields["decoder"]),
        ends=_offsets(fields.get("ends", ())),
    )


def _batch(fields: Mapping[str, Any]) -> BatchRecord:
    mode = fields["mode"]
    if mode not in ("wal", "memtable"):
        raise ValueError(f"mode {mode!r}")
    record = BatchRecord(
        record_id=_text(fields["record_id"]),
        sequence=_number(fields["sequence"]),
        stream=_text(fields["stream"]),
        open_id=_text(fields["open_id"]),
        query_id=_text(fields["query_id"]),
        batch_id=_number(fields["batch_id"]),
        sources=tuple(SourceRange(_text(t), _number(p), _number(a), _number(b)) for t, p, a, b in fields["sources"]),
        opaque=tuple(
            OpaqueRange(_text(source), None if start is None else _text(start), _text(until))
            for source, start, until in fields.get("opaque", ())
        ),
        shards={name: _part(part) for name, part in fields["shards"].items()},
        dead_letters={name: _part(part) for name, part in fields["dead_letters"].items()},
        mode=cast("Mode", mode),
    )
    if record.rows != fields["rows"]:
        raise ValueError(f"{fields['rows']} rows, but its shards hold {record.rows}")
    return record


def _rewind(fields: Mapping[str, Any]) -> RewindRecord:
    return RewindRecord(
        record_id=_text(fields["record_id"]),
        sequence=_number(fields["sequence"]),
        stream=_text(fields["stream"]),
        open_id=_text(fields["open_id"]),
        query_id=_text(fields["query_id"]),
        offsets=tuple(
            Moved(_text(topic), _number(partition), _known(before), _number(after))
            for topic, partition, before, after in fields["offsets"]
        ),
        rewound_at=_text(fields["rewound_at"]),
        by=_text(fields["by"]),
        reason=_text(fields["reason"]),
    )


def _part(part: Mapping[str, Any]) -> ShardPart:
    positions = tuple(_number(position) for position in part["positions"])
    rows, nbytes = _number(part["rows"]), _number(part["nbytes"])
    return ShardPart(UUID(part["shard_id"]), _text(part["attempt_id"]), positions, rows, nbytes)


def fold_from(fields: Mapping[str, Any]) -> Fold:
    """The fold that `plain` gave. Raises whatever wrong values raise: KeyError, TypeError, ValueError."""
    opened, last = fields["opened"], fields["last"]
    return Fold(
        sequence=_number(fields["sequence"]),
        stream=_text(fields["stream"]),
        opened=None if opened is None else _open(opened),
        last=None if last is None else _batch(last),
        starts=_offsets(fields.get("starts", ())),
        ends=_offsets(fields["ends"]),
        opaque_ends=tuple((_text(source), _text(end)) for source, end in fields["opaque_ends"]),
        shards={
            UUID(shard_id): FoldedShard(
                _text(folded["shard"]),
                _number(folded["replay_after"]),
                _number(folded["last"]),
                tuple((_number(first), _number(last)) for first, last in folded["visible"]),
            )
            for shard_id, folded in fields["shards"].items()
        },
        rewound=None if fields.get("rewound") is None else _rewind(fields["rewound"]),
        passes=tuple(
            Pass(_text(topic), _number(partition), _known(start), _number(until), _number(ended_by))
            for topic, partition, start, until, ended_by in fields.get("passes", ())
        ),
        changed=_number(fields.get("changed", 0)),
    )


def _known(value: Any) -> int | None:
    return None if value is None else _number(value)


def _offsets(values: Iterable[Any]) -> tuple[tuple[str, int, int], ...]:
    return tuple((_text(topic), _number(partition), _number(offset)) for topic, partition, offset in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> int:
    if not _is_number(value) or value < 0:
        raise ValueError(f"{value!r:.40} is not a number of 0 or more")
    return cast("int", value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not text")
    return value
