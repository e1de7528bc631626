"""Spark's own checkpoint directory, read as it is on disk. Never written here; `rebuild` makes a new one.

`metadata` has the query id; `offsets/N` where each source ends in batch N; `sources/<i>/0`
where it began; `commits/N` says that Spark is done with N. Offsets files start with their
version: in `v1` the sources come by number, in `v2` each line starts with the source's name.

Promises:
1. The ranges of a batch come from Spark's plan and never from rows: [end of the batch
   before, end of this one), so holes in compacted or transactional topics do not matter.
2. A file that is missing is NotFound, a damaged one Corrupt, an unknown version InvalidInput.
3. Nothing is cached and nothing is opened before the first call.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from headgate.checkpoints.log.decisions import BatchSources, Earliest, NewPartition
from headgate.checkpoints.log.names import ROOT, stream_folder
from headgate.checkpoints.log.records import OpaqueRange
from headgate.connectors.objects import redact
from headgate.connectors.objects.s3.options import S3FS, plain_name
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound, PermissionDenied, StoreError, Transient
from headgate.shards.shard import TableHome
from headgate.shards.wal.entry import SourceRange

KafkaOffsets: TypeAlias = Mapping[tuple[str, int], int]

_VERSIONS = ("v1", "v2")
_MAX_BYTES = 4 << 20
"""Maximum size of a file: the offsets of some hundred thousand partitions. Also limits the memory of the
parsed JSON.
"""
_NOTHING_YET = "-"
"""What Spark writes for a source that has no offset yet."""

_SOURCE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_CHECKSUM = re.compile(r"\.([0-9]+)\.crc")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """Where one source ends in a batch. `text` is Spark's own; None if the source has no offset yet."""

    source: str
    """Its number, or its name if the query names its sources; also its folder under `sources/`."""
    text: str | None
    kafka: KafkaOffsets | None
    """End (exclusive) by topic and partition; None for a source that is not Kafka."""


class SparkCheckpoint:
    """The checkpoint directory of one query: a path, file: or any URI that fsspec reads (s3:// through s3fs)."""

    def __init__(self, uri: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.uri = redact(uri)
        """The location, without credentials."""
        self._scheme, self._path = _parsed(uri)
        self.options = dict(storage_options or {})
        """Options of its store. They may hold credentials."""
        self._opened: Any = None

    def query_id(self) -> str:
        """The query's id, which survives restarts. Raises NotFound if Spark never started here."""
        try:
            return str(json.loads(self._read("metadata"))["id"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Corrupt("Spark's `metadata` has no query id.", checkpoint=self.uri) from error

    def offsets(self, batch_id: int) -> tuple[SourceOffsets, ...]:
        """Where each source ends in a batch, in Spark's order. Raises NotFound if Spark did not plan it."""
        file = f"offsets/{batch_id}"
        version, *lines = self._lines(file)
        # The first line is Spark's own: watermark, time and settings.
        if len(lines) < 2 or not _is_json(lines[0] or "{}"):
            raise Corrupt(f"Spark's {file} is cut off.", checkpoint=self.uri)
        named = [line.partition(":")[::2] for line in lines[1:]] if version == "v2" else _numbered(lines[1:])
        if any(not _SOURCE_NAME.fullmatch(source) for source, _ in named):
            raise Corrupt(f"Spark's {file} has a line without a source.", checkpoint=self.uri)
        if any(text.startswith("{") and not _is_json(text) for _, text in named):
            raise Corrupt(f"Spark's {file} is cut off.", checkpoint=self.uri)
        return tuple(_source_offsets(source, text) for source, text in named)

    def sources(self, batch_id: int) -> BatchSources:
        """What a batch reads. A source starts where the batch before ends, or where it began.

        A partition that the start does not have is new: Spark reads it from its earliest offset.
        """
        before = {o.source: o for o in self.offsets(batch_id - 1)} if batch_id > 0 else {}
        ranges: list[SourceRange] = []
        new: list[NewPartition] = []
        opaque: list[OpaqueRange] = []
        for end in self.offsets(batch_id):
            start = before.get(end.source)
            if end.text is None:
                continue
            if end.kafka is None:
                opaque.append(OpaqueRange(end.source, start.text if start else None, end.text))
                continue
            begins = start.kafka if start is not None and start.text is not None else self._initial(end.source)
            if begins is None:
                raise Corrupt(
                    f"Source {end.source} was not a Kafka source in batch {batch_id - 1}.", checkpoint=self.uri
                )
            for (topic, partition), until in sorted(end.kafka.items()):
                begin = begins.get((topic, partition))
                if begin is None:
                    new.append(NewPartition(topic, partition, until))
                else:
                    ranges.append(SourceRange(topic, partition, begin, until))
        return BatchSources(tuple(ranges), tuple(new), tuple(opaque))

    def ranges(self, batch_id: int, earliest: Earliest) -> tuple[SourceRange, ...]:
        """The Kafka ranges of a batch; `earliest` is called for partitions that are new in it."""
        return self.sources(batch_id).resolved(earliest)

    def planned(self) -> tuple[int, ...]:
        """Batches that have an offsets file, ascending. Spark keeps the last hundred or so."""
        return self._numbers("offsets")

    def commits(self) -> tuple[int, ...]:
        """Batches that Spark has finished, ascending."""
        return self._numbers("commits")

    def check_commit(self, batch_id: int) -> None:
        """Raises NotFound, Corrupt or InvalidInput if Spark could not read that it has finished a batch."""
        if not _is_json("\n".join(self._lines(f"commits/{batch_id}")[1:])):
            raise Corrupt(f"Spark's commits/{batch_id} is cut off.", checkpoint=self.uri)

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Names right below the directory, or below a folder of it; empty if it is empty or missing."""
        place = f"{self._path}/{folder}" if folder else self._path
        try:
            found = self._guarded(folder or "directory", lambda fs: fs.ls(place, detail=False))
        except NotFound:
            return ()
        return tuple(sorted(str(path).rstrip("/").rpartition("/")[2] for path in found))

    def begun(self) -> dict[str, bytes]:
        """Readable files that say where the Kafka sources began."""
        found = {}
        for source in filter(_SOURCE_NAME.fullmatch, self.names("sources")):
            with suppress(NotFound, Corrupt, InvalidInput):
                self._initial(source)
                found[f"sources/{source}/0"] = self._read(f"sources/{source}/0")
        return found

    def check_begun(self, source: str) -> None:
        """Raises NotFound, Corrupt or InvalidInput if Spark could not read where a Kafka source began."""
        self._initial(source)

    def stray_checksums(self) -> tuple[str, ...]:
        """Hadoop checksum files that a power cut left without their file, where Spark writes next. Spark could not
        write there: it would take the leftover for another query's.
        """
        if self.local_path is None:
            return ()
        folders = ["offsets", "commits", *(f"sources/{source}" for source in self.names("sources"))]
        return tuple(f"{folder}/{name}" for folder in folders for name in _strays(self.names(folder)))

    @property
    def local_path(self) -> str | None:
        """The directory as a local path, None if it is not on this machine."""
        return self._path if self._scheme == "file" else None

    @property
    def location(self) -> str:
        """The location in the form that `open_store` takes. It may hold credentials."""
        return self.local_path or f"{self._scheme}://{self._path}"

    # -- files ---------------------------------------------------------------------

    def _initial(self, source: str) -> KafkaOffsets:
        """Where a Kafka source began. Its file starts with a zero byte, for compatibility with Spark 2.0."""
        file = f"sources/{source}/0"
        lines = self._lines(file)
        kafka = _kafka("\n".join(lines[1:]))
        if kafka is None:
            raise Corrupt(f"Spark's {file} has no Kafka offsets.", checkpoint=self.uri)
        return kafka

    def _lines(self, file: str) -> list[str]:
        """Lines of a file; the first is the version. Raises InvalidInput for an unknown version."""
        try:
            lines = self._read(file).removeprefix(b"\0").decode().rstrip("\n").split("\n")
        except UnicodeDecodeError as error:
            raise Corrupt(f"Spark's {file} is not text.", checkpoint=self.uri) from error
        if not re.fullmatch("v[0-9]+", lines[0]):
            raise Corrupt(f"Spark's {file} does not start with a version.", checkpoint=self.uri)
        if lines[0] not in _VERSIONS:
            raise InvalidInput(
                f"Spark's {file} has version {lines[0]}; this release reads {' and '.join(_VERSIONS)}.",
                checkpoint=self.uri,
                advice="use a release of headgate that supports this version of Spark; nothing was written",
            )
        return lines

    def _read(self, file: str) -> bytes:
        found = bytes(self._guarded(file, lambda fs: _first_bytes(fs, f"{self._path}/{file}")))
        if len(found) > _MAX_BYTES:
            raise Corrupt(f"Spark's {file} has more than {_MAX_BYTES:,} bytes.", checkpoint=self.uri)
        return found

    def _numbers(self, folder: str) -> tuple[int, ...]:
        """The numbers in a folder, without checksum files, temporary files and compacted logs."""
        return _as_numbers(self.names(folder))

    def _guarded(self, file: str, operation: Callable[[Any], Any]) -> Any:
        """Calls fsspec and translates its errors. Their texts may hold credentials, so they are only chained."""
        try:
            if self._opened is None:
                self._opened = _filesystem(self._scheme, self.options)
            return operation(self._opened)
        except HeadgateError:
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(
                f"Spark's checkpoint has no {file}.",
                checkpoint=self.uri,
                advice="check the checkpoint location; `headgate recover` rebuilds a lost one",
            ) from error
        except PermissionError as error:
            raise PermissionDenied(f"No permission to read Spark's {file}.", checkpoint=self.uri) from error
        except OSError as error:
            raise Transient(f"Reading Spark's {file} failed.", checkpoint=self.uri) from error
        except Exception as error:  # for example a cloud client's error for missing credentials
            raise StoreError(f"Reading Spark's {file} failed.", checkpoint=self.uri) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def _first_bytes(fs: Any, path: str) -> bytes:
    """One byte more than a file of Spark's may have."""
    try:
        found: bytes = fs.cat_file(path, start=0, end=_MAX_BYTES + 1)
    except OSError as error:
        # S3 has no range of an empty object.
        if error.errno != errno.EINVAL or fs.size(path) != 0:
            raise
        return b""
    return found


# -- text ------------------------------------------------------------------------


def _as_numbers(names: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))


def _strays(names: Sequence[str]) -> list[str]:
    last = max(_as_numbers(names), default=-1)
    checksums = ((name, _CHECKSUM.fullmatch(name)) for name in names)
    return [name for name, match in checksums if match is not None and int(match[1]) > last]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _numbered(lines: list[str]) -> list[tuple[str, str]]:
    return [(str(number), line) for number, line in enumerate(lines)]


def _source_offsets(source: str, text: str) -> SourceOffsets:
    if text == _NOTHING_YET:
        return SourceOffsets(source, None, None)
    return SourceOffsets(source, text, _kafka(text))


def _kafka(text: str) -> KafkaOffsets | None:
    """Kafka's offsets look like {"topic": {"partition": end}}; anything else is not Kafka's."""
    try:
        topics = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(topics, dict):
        return None
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict):
            return None
        for partition, end in partitions.items():
            if not (partition.isascii() and partition.isdigit()) or type(end) is not int or end < 0:
                return None
            found[topic, int(partition)] = end
    return found


# -- location ------------------------------------------------------------------------


def _parsed(uri: str) -> tuple[str, str]:
    """Scheme and path for fsspec. Hadoop writes file:/path, unescaped; people write file:///path, escaped."""
    if not uri:
        raise InvalidInput("The checkpoint location is empty.")
    match = _SCHEME.match(uri)
    if match is None:
        return "file", uri.rstrip("/") or "/"
    scheme = {"s3a": "s3", "s3n": "s3"}.get(match[1].lower(), match[1].lower())
    rest = uri[match.end() :].rstrip("/")
    if scheme == "file":
        return scheme, unquote(rest) if match[2] else rest
    return scheme, rest


def _filesystem(scheme: str, options: Mapping[str, Any]) -> Any:
    import fsspec

    given = _for_s3fs(options) if scheme == "s3" else options if scheme != "file" else {}
    try:
        # Listings must be fresh, and a cached instance with another configuration must not be reused.
        return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **given)
    except (ImportError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"Opening a checkpoint location with scheme {scheme!r} failed.",
            advice="install the package that fsspec needs for it (s3: pip install 'headgate[s3]'), and check the "
            "storage options",
        ) from error


def _for_s3fs(options: Mapping[str, Any]) -> dict[str, Any]:
    """Translates pylance's option names to s3fs's; s3fs's own names pass through."""
    client: dict[str, Any] = dict(options.get("client_kwargs") or {})
    given: dict[str, Any] = {}
    for name, value in options.items():
        short = plain_name(name)
        if short in S3FS:
            given[S3FS[short]] = value
        elif short in ("region", "default_region"):
            client["region_name"] = value
        elif short == "skip_signature":
            given["anon"] = str(value).lower() in ("true", "1")
        elif name in _S3FS_OWN:
            given[name] = value
    return {**given, **({"client_kwargs": client} if client else {})}


_S3FS_OWN = frozenset({"key", "secret", "anon", "profile", "use_ssl", "config_kwargs", "s3_additional_kwargs"})


def default_checkpoint(home: TableHome, stream: str) -> str:
    """Default location of Spark's checkpoint: below the table's id, so that a re-created table never finds an old one.
    Raises InvalidInput for a table that is not on local disk.
    """
    if "://" in home.uri:
        raise InvalidInput(
            "The table is not on local disk, so Spark's checkpoint needs a separate location.",
            table=home.uri,
            advice="name it with --spark-checkpoint: a local directory, or s3a://… (see docs/operations/s3.md)",
        )
    folder = stream_folder(stream).removeprefix(ROOT)
    return str(Path(home.uri) / "_headgate" / str(home.table_id) / "spark" / folder)
