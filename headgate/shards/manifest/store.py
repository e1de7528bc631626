"""ManifestStore: who may write to a shard, decided by compare-and-set on its manifest.

Promises:
1. A manifest is never overwritten and no version is left out: every write is a put-if-absent of latest + 1, and the
   latest is what LIST shows (R7).
2. Each of any number of claims gets its own epoch; a refused claim writes nothing.
3. A lost response is not an error: a write is identified by its random write id. (Native copies a claim id into its own
   claims, so a claim id is not enough.)
4. `commit_update` returns only if the update stands, under a claim that still holds.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import UUID

from headgate.connectors.objects.port import ObjectStore
from headgate.errors import AlreadyExists, DataLoss, Fenced, HeadgateError, InvalidInput, NotFound, Transient
from headgate.retry import Retry
from headgate.shards import names
from headgate.shards.manifest import decisions
from headgate.shards.manifest.model import WRITE_ID, Manifest, check_successor, decode_manifest, encode_manifest

CLAIM_TRIES = 16
"""Native's number. Each lost try means that another claim won; more tries would be an epoch war."""

UPDATE_TRIES = 10
"""Native's number. One job per shard changes the manifest at a time, so a conflict is rare."""

LIST_TRIES = 8
"""A listed manifest vanishes only to garbage collection, which waits min-age between two runs."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim that was written, and the manifest it was based on (None if the shard is new)."""

    manifest: Manifest
    previous: Manifest | None

    @property
    def epoch(self) -> int:
        """The claimed epoch."""
        return self.manifest.epoch

    @property
    def claim_id(self) -> str:
        """The random id that identifies the claim."""
        assert self.manifest.claim_id is not None
        return self.manifest.claim_id


class ManifestStore:
    """The manifests of one shard. Stateless: thread-safe and picklable."""

    def __init__(self, store: ObjectStore, shard_id: UUID, table: str, table_id: UUID | None = None) -> None:
        self.store = store
        self.shard_id = shard_id
        self.table = table
        self.table_id = table_id

    def versions(self) -> list[int]:
        """Every existing version, oldest first. The hint and strays are ignored."""
        with self._with_context():
            folder = names.manifest_folder(self.shard_id) + "/"
            found = map(names.manifest_version, self.store.list_keys(folder))
            return sorted(version for version in found if version)

    def read(self, version: int) -> Manifest:
        """One version. Raises NotFound, Corrupt."""
        with self._with_context():
            data = self.store.get(names.manifest_key(self.shard_id, version))
            return decode_manifest(data, shard_id=self.shard_id, version=version)

    def latest(self, known: Manifest | None = None) -> Manifest | None:
        """The highest version that LIST shows, None on a new shard. Raises Corrupt, never returns an older version
        instead.

        Also None on a shard of another table that was in this place before (R23). If the highest version is the `known`
        one, it is not read again: a version never changes.
        """
        with self._with_context():
            for _ in range(LIST_TRIES):
                versions = self.versions()
                if not versions:
                    return None
                if known is not None and known.version == versions[-1]:
                    return known
                try:
                    found = self.read(versions[-1])
                    return found if found.is_of(self.table_id) else None
                except NotFound as error:
                    # Collected since the LIST, so a newer one must exist.
                    vanished = error
            raise Transient("The latest manifest disappeared each time after it was listed.") from vanished

    def claim(
        self, owner: str | None = None, *, spec_id: int = 0, upon: Callable[[], Manifest | None] | None = None
    ) -> Claimed:
        """Take the shard with the next epoch. THIS WRITES, AND IT FENCES AN EARLIER WRITER.

        1. latest: a shard of another owner, or sealed without an owner, is InvalidInput.
        2. put version + 1 with epoch + 1, a random claim id and write id; everything else stays. With an owner the
           manifest is sealed (native keeps out), without one not.
        3. if that version is taken: our write id there means a lost response, done; otherwise from 1 again.
        4. LIST: a claimer that stalled until its version was collected has a claim that was never the latest. If its
           epoch is not below the holder's, it is Fenced here: its barrier would fence the writer that holds the shard.
           (Otherwise the re-read tells it, R3.)
        5. write the hint, best effort. Not with an owner: only native reads it, which is kept out, and finds the seal
           by going on from an older hint.

        `spec_id` is for a shard that is new; an existing one keeps its own. `upon` gives the manifest that the caller
        has just read (None: there was none), for the first try: reading it long ago is like stalling since, which 3 and
        4 handle. Raises Transient if the outcome is unknown or the shard stays contended; a claim that landed unknown
        fences the earlier writer and hurts nobody else.
        """
        if owner == "":
            raise InvalidInput("An owner must not be empty.", table=self.table, shard=str(self.shard_id))
        claim_id = uuid.uuid4().hex
        with self._with_context():
            for _ in range(CLAIM_TRIES):
                previous = self.latest() if upon is None else upon()
                upon = None
                if previous is not None:
                    self._check_owner(previous, owner)
                manifest = decisions.claimed(
                    previous,
                    self.shard_id,
                    owner=owner,
                    claim_id=claim_id,
                    write_id=uuid.uuid4().hex,
                    spec_id=spec_id,
                    table_id=self.table_id,
                )
                if self._put(manifest):
                    told = self._is_latest if owner else self._hint_if_latest
                    if not told(manifest.version):
                        self._check_no_ghost(claim_id, manifest.epoch)
                    return Claimed(manifest, previous)
            raise Transient(f"Other writers claimed the shard during each of {CLAIM_TRIES} tries.")

    def check_free(self) -> None:
        """Raises InvalidInput if a claim without an owner would be refused. Writes nothing."""
        with self._with_context():
            if (stored := self.latest()) is not None:
                self._check_owner(stored, None)

    def check_fenced(self, epoch: int, claim_id: str | None = None, known: Manifest | None = None) -> Manifest | None:
        """The latest manifest, if it does not fence a writer of this epoch (and claim id, if given). A `known` manifest
        is not read again.

        Raises Fenced if the stored epoch is higher, or equal under another claim id. No manifest, or a lower stored
        epoch, fences nobody.
        """
        stored = self.latest(known)
        if stored is not None and decisions.is_fenced(stored, epoch, claim_id):
            raise self._fenced(stored, epoch)
        return stored

    def held(self, epoch: int, claim_id: str, known: Manifest | None = None) -> Manifest:
        """The same for a claimed shard, which must have a manifest. Raises Fenced, and DataLoss if it is gone."""
        return self.there(self.check_fenced(epoch, claim_id, known))

    def there(self, stored: Manifest | None) -> Manifest:
        """Returns `stored`, the latest manifest of a shard that was claimed. Raises DataLoss if there is none."""
        if stored is None:
            raise DataLoss(
                "The shard has been claimed, yet it has no manifest.",
                table=self.table,
                shard=str(self.shard_id),
                advice="was the table dropped? Restore its files, or open the table that is there now",
            )
        return stored

    def commit_update(
        self, claim_id: str, epoch: int, change: Callable[[Manifest], Manifest], *, upon: Manifest | None = None
    ) -> Manifest:
        """Write `change(latest)` as the next version, if the claim still holds. Returns the manifest as written.

        1. latest: none is DataLoss; another claim id or epoch is Fenced.
        2. change: a pure function of the latest. An error that it raises abandons the update (R9). Version and write id
           are set here; epoch and claim id must stay.
        3. put version + 1. If it is taken: our write id there means a lost response; otherwise from 1 again.
        4. LIST: if ours is not the highest, the highest must be under our claim, and its values must not be behind
           ours. A writer that stalled until its version was collected must not believe its update, even if another job
           of its own claim continued meanwhile.
        5. write the hint, best effort.

        `upon` is the manifest as this claim's holder read or wrote it last, for the first try: reading it long ago is
        like stalling since, which 3 and 4 handle.

        Raises Transient if the outcome is unknown. After Fenced from step 4 the update may have landed before the
        successor's claim: leave what it names to garbage collection.
        """
        with self._with_context(epoch=epoch):
            for _ in range(UPDATE_TRIES):
                stored, upon = upon or self.there(self.latest()), None
                if not stored.held_by(epoch, claim_id):
                    raise self._fenced(stored, epoch)
                changed = replace(change(stored), version=stored.version + 1)
                if not changed.held_by(epoch, claim_id):
                    raise InvalidInput("An update must not change epoch or claim id.", stored_epoch=stored.epoch)
                check_successor(stored, changed)
                changed = changed.with_field(WRITE_ID, uuid.uuid4().hex.encode())
                if self._put(changed):
                    if not self._hint_if_latest(changed.version):
                        self._check_held(claim_id, epoch, changed)
                    return changed
            raise Transient(f"Other processes changed the manifest during each of {UPDATE_TRIES} tries.")

    def write_hint(self) -> bool:
        """Tell native which version is the latest. True if the hint now names it.

        The version that the hint names, or a later one, must exist before older ones are deleted (R7).
        """
        versions = self.versions()
        return bool(versions) and self._hint_if_latest(versions[-1], required=True)

    def _put(self, manifest: Manifest) -> bool:
        """True if this version is ours and durable, False if it is another's. Raises Transient if that is unknown: it
        may still land.
        """
        key, data = names.manifest_key(self.shard_id, manifest.version), encode_manifest(manifest)
        try:
            # A store that retries puts the same bytes on the same version: if a put lands late, it is still this write.
            self.store.put_if_absent(key, data)
            return True
        except (AlreadyExists, Transient) as error:
            refused = error
        try:
            return self.read(manifest.version).write_id == manifest.write_id
        except NotFound:
            what = f"It is unknown whether manifest {manifest.version} was written."
            raise Transient(what, epoch=manifest.epoch) from refused

    def _hint_if_latest(self, version: int, *, required: bool = False) -> bool:
        """True if `version` is the highest; then the hint is written (with `required`, True also means that this
        succeeded).

        Never for a lower version: native would take a version that came back below collected ones for the latest.
        """
        if not self._is_latest(version):
            return False
        try:
            hint = json.dumps({"version": version}, separators=(",", ":")).encode()
            store = self.store if required else self.store.retrying(Retry(attempts=0))  # best effort: no retries
            store.put_overwrite(names.version_hint_key(self.shard_id), hint)
        except Exception:  # a failing hint must not undo what is durable
            _log.debug("version hint %d of shard %s was not written", version, self.shard_id, exc_info=True)
            return not required
        return True

    def _is_latest(self, version: int) -> bool:
        return self.versions()[-1:] == [version]

    def _check_no_ghost(self, claim_id: str, epoch: int) -> None:
        stored = self.latest()
        if stored is not None and decisions.is_ghost(stored, epoch, claim_id):
            raise self._fenced(stored, epoch)

    def _check_held(self, claim_id: str, epoch: int, written: Manifest) -> None:
        stored = self.latest()
        if stored is None:
            raise DataLoss("The manifests disappeared during a write.")
        if not stored.held_by(epoch, claim_id):
            raise self._fenced(stored, epoch)
        if not decisions.follows(stored, written):
            raise Fenced(
                "The written manifest never was the latest: garbage collection had already deleted its version.",
                table=self.table,
                shard=str(self.shard_id),
                epoch=epoch,
                advice="open the shard again; its rows are safe",
            )

    def _check_owner(self, stored: Manifest, owner: str | None) -> None:
        if stored.owner is None and stored.sealed:
            raise InvalidInput(
                "The shard is being dropped: it is sealed and no stream owns it.",
                stored_epoch=stored.epoch,
                advice="wait for the drop to finish, or unseal the shard if the drop was abandoned; nothing was "
                "written",
            )
        if stored.owner is not None and stored.owner != owner:
            asked = "a writer without a stream" if owner is None else f"stream {owner!r}"
            raise InvalidInput(
                f"The shard belongs to stream {stored.owner!r}, but {asked} opened it.",
                stored_epoch=stored.epoch,
                advice=f"write with stream {stored.owner!r}, or release the shard first (`headgate shard release TABLE "
                f"--stream {stored.owner} --forget-owner --apply`); nothing was written",
            )

    def _fenced(self, stored: Manifest, epoch: int) -> Fenced:
        what = "Another writer claimed the shard." if stored.epoch > epoch else "Another claim holds the shard."
        return Fenced(
            what, table=self.table, shard=str(self.shard_id), epoch=epoch, stored_epoch=stored.epoch, owner=stored.owner
        )

    @contextmanager
    def _with_context(self, epoch: int | None = None) -> Iterator[None]:
        """Adds table and shard to any error raised inside."""
        try:
            yield
        except HeadgateError as error:
            error.with_context(table=self.table, shard=str(self.shard_id), epoch=epoch)
            raise
