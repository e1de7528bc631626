"""fsck of the archive of a commit log: every object, and that every batch is in the log or the archive. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from headgate.checkpoints.fsck.findings import Finding, finding
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.archive.format import ArchiveName, name_of
from headgate.checkpoints.log.records import Span
from headgate.checkpoints.log.state import merged
from headgate.connectors.objects import ObjectStore
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound
from headgate.parallel import Pool, in_order


@dataclass(frozen=True)
class ArchiveLook:
    findings: tuple[Finding, ...]
    objects: int


def check_archive(store: ObjectStore, stream: str, table_uri: str, under: str, pool: Pool) -> ArchiveLook:
    """Check the archive of a stream; without an archive there are no findings. `under` is the store's place in the
    table.

    1. LIST the log, then the archive: a record is archived before it is deleted.
    2. every number since the archive began must be in one of them.
    3. check every object: its bytes, its name, its records.
    """
    archive = LogArchive(store, stream, table_uri)
    found: list[Finding] = []
    sequences = archive.log.sequences()
    names: list[ArchiveName] = []
    for info in store.list(archive.folder):
        if (name := name_of(info.key.removeprefix(archive.folder))) is not None:
            names.append(name)
        else:
            found.append(finding("log-stray", under + info.key, "This is not the name of an archive object."))
    try:
        since = archive.since()
    except NotFound:
        pass
    except HeadgateError as error:
        found.append(_damaged(error, under + archive.marker))
    else:
        runs = [name.span for name in names] + [(one, one) for one in sequences]
        for first, last in holes(runs, since):
            what = f"Batches {first} to {last} are missing from both the log and its archive."
            found.append(finding("archive-hole", f"{under}{archive.folder} (from {first})", what))
    for one in in_order(pool, partial(_read, archive, under), sorted(names)):
        if one is not None:
            found.append(one)
    return ArchiveLook(tuple(found), len(names))


def holes(runs: list[Span], since: int) -> Iterator[Span]:
    """Runs of numbers above `since`, up to the highest, that no run covers."""
    at = since
    for first, last in merged(sorted(runs)):
        if first > at + 1:
            yield at + 1, first - 1
        at = max(at, last)


def _read(archive: LogArchive, under: str, name: ArchiveName) -> Finding | None:
    try:
        archive.read(name)
    except (Corrupt, InvalidInput) as error:
        return _damaged(error, under + archive.key(name))
    except NotFound:
        pass  # the second look reports it as a hole
    return None


def _damaged(error: HeadgateError, place: str) -> Finding:
    return finding("record-newer" if isinstance(error, InvalidInput) else "archive-damaged", place, error.what)
