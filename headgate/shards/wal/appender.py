"""WalAppender: the only code that writes under `wal/`.

Promises:
1. `append` returns the position of an entry that is durable, or raises; it never overwrites and never leaves a gap.
2. After a successor's open has returned, no append of this appender succeeds: the successor's barrier occupies the slot
   it wants (and stays there, R5).
3. A lost response is not an error: an entry is identified by its unique id, not its bytes.
4. An appender that raised Fenced or Poisoned never touches the store again.
5. After an append has raised, `sent` says whether its rows may be durable (R24).
6. If the table was dropped, an append raises Fenced, whatever is in its place now (R23): at once if the store can tell
   (see `put_next` of the port), otherwise within a minute (see `shards.home.presence`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from headgate.connectors.objects.port import Bytes
from headgate.errors import AlreadyExists, DataLoss, Fenced, HeadgateError, NotFound, Poisoned, StoreError, Transient
from headgate.retry import note_retry
from headgate.shards.home.presence import Presence, dropped
from headgate.shards.manifest.decisions import Slot, claim_stands, entry_in_the_way, search_start
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Claim, Shard
from headgate.shards.wal.decoder import decode_header
from headgate.shards.wal.encoder import encode_barrier, encode_entry
from headgate.shards.wal.entry import HEADER_GUESS, EncodedEntry, EncodedRows, EntryHeader, Tags, header_length
from headgate.shards.wal.moved import WalPlaces, before_move, check_place, move_wal
from headgate.shards.wal.tip import checked_tip, find_tip, listed_end
from headgate.steps import step


@dataclass(frozen=True, slots=True)
class Appended:
    """A durable entry."""

    position: int
    entry_id: str
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Sent:
    """An entry for which a request was sent, the position of the last request, and what was read there since."""

    entry_id: str
    position: int
    slot: Slot | None = None


class WalAppender:
    """Appends entries to one shard, one after the other. One thread owns it; any thread may call `halt` and `sent`."""

    def __init__(self, claim: Claim) -> None:
        self.shard = claim.shard
        self.epoch = claim.epoch
        self.claim_id = claim.claim_id
        self.next_position = claim.next_position
        self.retries = 0
        self.opened: Manifest | None = None
        """The manifest that `open` read last: replay starts from it."""
        self._presence: Presence | None = None
        """None for an attached appender: the driver of its stream looks."""
        self._error: HeadgateError | None = None
        self._sent: Sent | None = None
        self._halt: HeadgateError | None = None
        self._halted = threading.Condition()

    @classmethod
    def open(
        cls,
        shard: Shard,
        *,
        owner: str | None = None,
        last_known: int | None = None,
        known_tip: int | None = None,
        read: Callable[[], Manifest | None] | None = None,
    ) -> WalAppender:
        """Claim the shard. THIS WRITES, AND IT FENCES AN EARLIER WRITER.

        1. look: the manifest can be read and the WAL has no hole between replay_after and the end that one LIST shows;
           what is appended meanwhile is not read. With an owner only from the last position that its log knows of
           (`last_known`): the log lists all that counts. Nothing is written yet: a failed look fences nobody. A caller
           that has just read the WAL up to its end passes `known_tip`. `read` gives the manifest that the caller has
           just read.
        2. claim: put a manifest with the next epoch and a random claim id.
        3. tip: the first free position, from the highest of the look's end, the claimed manifest's last_seen and
           replay_after, and `last_known` on.
        4. barrier: put a data-less entry there, stepping over what came meanwhile. In a clone whose WAL store is not
           chosen yet, the first writer first chooses it and copies the WALs there.
        5. re-read the manifest: it still carries our claim id and the barrier lies above its replay_after; otherwise we
           are Fenced (R3).
        6. if the table was given a WAL store and the shard's WAL is still in the table, 3 to 5 were done there; the WAL
           moves now, see `move_wal`.

        On a fresh shard the barrier is entry 0 and rows start at 1. A crash after any step leaves a shard that opens.
        Raises Fenced if another opener was later, InvalidInput if the shard belongs to another owner (nothing is
        written then), DataLoss if positions below the tip are missing, Corrupt if the WAL ends below what the manifest
        says was flushed.
        """
        manifests = shard.manifests
        step("look")
        if known_tip is None:
            look = partial(_tip, last_known=last_known) if owner else _end
            manifest, known_tip = look(shard, read or manifests.latest)
            read = partial(_same, manifest)
        step("claim")
        claimed = manifests.claim(owner, spec_id=shard.home.spec_id, upon=read)
        manifest = claimed.manifest
        assert manifest.claim_id is not None
        check_place(shard, claimed.previous)
        place = before_move(shard, claimed.previous)
        step("tip")
        start = max(known_tip, search_start(claimed.previous, last_known))
        try:
            free = find_tip(place, start)
        except DataLoss:
            # The missing entries may be flushed by a successor, and collected.
            manifests.check_fenced(manifest.epoch, manifest.claim_id)
            raise
        appender = cls(Claim(place, manifest.epoch, manifest.claim_id, free))
        step("barrier")
        if isinstance(place.wal, WalPlaces):
            place.wal.settle()
        barrier = appender._put(encode_barrier(epoch=manifest.epoch), place.wal.put_once).position
        step("re-read")
        stored = manifests.latest(manifest)
        if not claim_stands(stored, manifest.epoch, manifest.claim_id, barrier):
            raise appender._stop(
                Fenced(
                    "Another writer claimed the shard while this writer was opening it.",
                    **shard.where(),
                    position=barrier,
                    epoch=manifest.epoch,
                    stored_epoch=stored.epoch if stored else None,
                )
            )
        assert stored is not None
        if place is not shard:
            stored = move_wal(shard, appender.claim, stored.replay_after)
            appender = cls(replace(appender.claim, shard=shard))
        appender.opened = stored
        appender._presence = Presence(shard.home)
        return appender

    @classmethod
    def with_claimed_epoch(cls, claim: Claim) -> WalAppender:
        """Work with an epoch and position that the caller holds. Claims, reads and writes nothing."""
        return cls(claim)

    @property
    def claim(self) -> Claim:
        """The current claim, to hand on."""
        return Claim(self.shard, self.epoch, self.claim_id, self.next_position)

    def append(
        self,
        chunks: Sequence[EncodedRows],
        tags: Tags = Tags(),  # noqa: B008
        entry_id: str | None = None,
        on_retry: Callable[[], None] = lambda: None,
    ) -> Appended:
        """Store the chunks as one entry at the next free position. Calls `on_retry` before each pause between tries.

        Raises Fenced (a successor has taken the shard) or Poisoned (the store did not
        answer within the retries). Both are final; `sent` says what is known of the entry.
        """
        schema = self.shard.home.schema
        if self._presence is not None and self._error is None:
            try:
                self._presence.check()
            except Fenced as error:
                raise self._stop(error.with_context(**self.shard.where())) from error.__cause__
        entry = encode_entry(schema, chunks, epoch=self.epoch, tags=tags, entry_id=entry_id)
        return self._put(entry, self.shard.wal.put_next, on_retry)

    def halt(self, error: HeadgateError) -> None:
        """The writer has failed elsewhere: append no new entry and try no further slot. A request without an answer is
        sent at most once more, to learn its outcome. When this returns, the position of `sent` is final.
        """
        with self._halted:
            self._halt = error
            self._halted.notify_all()

    @property
    def sent(self) -> Sent | None:
        """The last entry for which a request was sent."""
        with self._halted:
            return self._sent

    def _put(
        self,
        encoded: EncodedEntry,
        put: Callable[[str, Sequence[Bytes]], None],
        on_retry: Callable[[], None] = lambda: None,
    ) -> Appended:
        """Put the entry, stepping up by one from the planned position (R10):

        1. put if absent. Done if it succeeds.
        2. if the slot is taken: our own id means that a response was lost, done; a higher epoch means Fenced; the same
           or a lower epoch means the next slot.
        3. if the store does not answer: the same slot again after a pause, then Poisoned.
        4. if the WAL's folder is gone: the manifest shows whether the table is. If not, as 3.

        The retry policy is the store's, but the pauses are made here: `halt` ends them, and a slot that is taken and
        free again uses up the remaining tries.
        """
        if self._error is not None:
            raise self._error
        delays = self.shard.wal.retry.delays()
        while True:
            position, before = self.next_position, self._sent
            self._send(encoded.entry_id, position)
            try:
                put(self.shard.wal_key(position), encoded.buffers)
            except AlreadyExists as error:
                if not self._taken(position, encoded.entry_id):
                    if self.next_position == position:
                        self._wait(delays, position, error, on_retry)
                    continue
            except NotFound as error:
                with self._halted:
                    self._sent = before
                self._check_held(position)
                self._wait(delays, position, error, on_retry)
                continue
            except Transient as error:
                self._wait(delays, position, error, on_retry)
                continue
            except StoreError as error:
                raise self._stop(self._poisoned(f"The store rejected a WAL entry: {error.what}", position)) from error
            self.next_position = position + 1
            return Appended(position, encoded.entry_id, encoded.rows, encoded.nbytes)

    def _taken(self, position: int, entry_id: str) -> bool:
        """Whose entry is in the slot? True if it is ours. False if it is a stale one (then `next_position` is above
        it), or if it vanished.
        """
        try:
            header = read_header(self.shard, position)
        except NotFound:
            self._check_vanished(position)
            return False
        except Transient as error:
            raise self._stop(self._poisoned("Reading the WAL entry at this position failed.", position)) from error
        except HeadgateError as error:
            raise self._stop(self._poisoned("The WAL entry at this position is damaged.", position)) from error
        slot = entry_in_the_way(
            entry_id=entry_id, epoch=self.epoch, stored_id=header.entry_id, stored_epoch=header.epoch
        )
        with self._halted:
            self._sent = Sent(entry_id, position, slot)
        if slot is Slot.FENCED:
            raise self._stop(self._fenced(position, header.epoch))
        if slot is Slot.STALE:
            self.next_position = position + 1
        return slot is Slot.OURS

    def _send(self, entry_id: str, position: int) -> None:
        """Note that a request is being sent. If `halt` was called, raises its error instead of trying another slot."""
        with self._halted:
            again = self._sent is not None and (self._sent.entry_id, self._sent.position) == (entry_id, position)
            if self._halt is not None and not again:
                raise self._stop(self._halt)
            self._sent = Sent(entry_id, position)

    def _check_vanished(self, position: int) -> None:
        """The slot was taken and is free again: a conflict that left nothing, or an entry that was collected.

        Only the manifest shows which. Filling a collected slot would acknowledge a row that no replay reads.
        """
        if position <= self._check_held(position).replay_after:
            raise self._stop(
                self._poisoned("The entry at the next WAL position was already flushed and deleted.", position)
            )

    def _check_held(self, position: int) -> Manifest:
        """The shard's manifest, which has our claim. Raises Fenced, Poisoned."""
        try:
            stored = self.shard.manifests.latest()
        except HeadgateError as error:
            raise self._stop(self._poisoned("Reading the shard's manifest failed.", position)) from error
        if stored is None:
            raise self._stop(dropped(self.shard.home).with_context(**self.shard.where(), position=position))
        if not stored.held_by(self.epoch, self.claim_id):
            raise self._stop(self._fenced(position, stored.epoch))
        return stored

    def _wait(self, delays: Iterator[float], position: int, error: StoreError, on_retry: Callable[[], None]) -> None:
        delay = next(delays, None) if self._halt is None else None
        if delay is None:
            what = "The store did not answer the put of a WAL entry; it may be stored or not."
            if isinstance(error, NotFound):
                what = "The folder of the shard's WAL is gone, though the shard's manifest is there."
            raise self._stop(self._poisoned(what, position)) from error
        self.retries += 1
        note_retry()
        on_retry()
        with self._halted:
            self._halted.wait_for(lambda: self._halt is not None, delay)

    def _fenced(self, position: int, stored_epoch: int) -> Fenced:
        return Fenced(
            "Another writer took over the shard.",
            **self.shard.where(),
            position=position,
            epoch=self.epoch,
            stored_epoch=stored_epoch,
        )

    def _poisoned(self, what: str, position: int) -> Poisoned:
        return Poisoned(what, **self.shard.where(), position=position, epoch=self.epoch)

    def _stop(self, error: HeadgateError) -> HeadgateError:
        self._error = error
        return error


def _same(manifest: Manifest | None) -> Manifest | None:
    return manifest


def _end(shard: Shard, read: Callable[[], Manifest | None]) -> tuple[Manifest | None, int]:
    """The WAL's end before the claim, from one LIST. Raises DataLoss for a hole below it."""
    manifest = read()
    check_place(shard, manifest)
    return manifest, listed_end(shard, manifest, shard.manifests.latest)


def _tip(shard: Shard, read: Callable[[], Manifest | None], last_known: int | None) -> tuple[Manifest | None, int]:
    """The tip of a stream's WAL before the claim. Raises DataLoss for a hole that remains.

    A living driver may flush and collect between the two reads; then its manifest says so.
    """
    manifest = read()
    while True:
        check_place(shard, manifest)
        start = search_start(manifest, last_known)
        try:
            return manifest, checked_tip(shard, start)
        except DataLoss:
            manifest = shard.manifests.latest()
            if search_start(manifest, last_known) == start:
                raise


def read_header(shard: Shard, position: int) -> EntryHeader:
    """The header of the entry at a position: one range read, and a second one if the schema is large."""
    key = shard.wal_key(position)
    try:
        data = shard.wal.get_range(key, 0, HEADER_GUESS)
        length = header_length(data)
        if length > len(data):
            data = shard.wal.get_range(key, 0, length)
        return decode_header(data)
    except HeadgateError as error:
        raise shard.at_position(error, position)  # noqa: B904 - the same error, told where
