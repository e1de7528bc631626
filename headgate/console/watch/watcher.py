"""Reads tables in the background, one small look after the other, so that pages need not.

Promises:
1. It reads everything from the store, except streams of this process, whose state it reads from memory.
2. Its own looks stay within the budget: two store requests per second over all tables. The most overdue look comes
   first; logs are due most often, then one shard at a time. While nobody views a page, all looks are 15 times rarer.
3. The page of a table shows a look that failed; it is repeated, and the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from headgate import clock, parallel
from headgate.checkpoints.jobs.state import read_state
from headgate.checkpoints.log.names import ROOT, list_streams, stream_folder
from headgate.checkpoints.snapshots.at_checkpoint import for_reading
from headgate.connectors.objects import ObjectStore, open_store
from headgate.console.watch.budget import Budget
from headgate.console.watch.kafka import KafkaWatch, TopicEnds
from headgate.console.watch.live import LiveStream
from headgate.console.watch.log import LogTail, StreamLog, live_log
from headgate.console.watch.now import ShardNow, StreamNow, TableNow, first_error, stale_first
from headgate.console.watch.places import TablePlace, keys_of, tables_at
from headgate.errors import HeadgateError, Transient
from headgate.shards.home.record import record_ids, shard_folders
from headgate.table.look import Place, look_at
from headgate.table.status import Consumer
from headgate.table.table import Table, open_table

_log = structlog.get_logger("headgate.console")

LOG_EVERY, STATE_EVERY, SHARD_EVERY, NAMES_EVERY, PLACES_EVERY = 2.0, 10.0, 4.0, 30.0, 60.0
"""Seconds between two looks of a kind at one table, if the budget allows it."""
UNSEEN, UNSEEN_TIMES = 60.0, 15.0
"""After so many seconds without an open page, looks are so many times rarer."""
READING_SECONDS = 20.0
"""How long a page waits while another one reads the same table."""
RETRY_EVERY = 15.0
"""Seconds until opening a table is retried."""
IDLE = 0.5


@dataclass
class Chore:
    """One kind of look."""

    every: float
    run: Callable[[], None]
    last: float = float("-inf")


class Watcher:
    """The tables of one console."""

    def __init__(self, places: Sequence[TablePlace], consumer: Consumer | None = None) -> None:
        self.budget = Budget()
        self.version = 0
        """Increases with every look that may have changed something."""
        self._given = tuple(places)
        self._tables: dict[str, WatchedTable] = {}
        self._keys: dict[str, str] = {}
        self._stores: dict[str, ObjectStore] = {}
        self._live: dict[tuple[str, str], LiveStream] = {}
        self._ends = None if consumer is None else TopicEnds(consumer)
        self._kafka = None if self._ends is None else KafkaWatch(self._ends, self._topics)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._asked_at = clock.monotonic()
        self._over = False
        self._places = Chore(PLACES_EVERY, self._find)
        self._errors: dict[str, str] = {}
        self._thread = parallel.thread("console", self._run)

    # -- for pages -------------------------------------------------------------------

    def now(self) -> list[TableNow]:
        """All tables as they were last read, by name."""
        self.asked()
        with self._lock:
            tables = sorted(self._tables.values(), key=lambda one: one.key)
        return [table.now for table in tables]

    def table(self, key: str) -> WatchedTable | None:
        """The table with this key, None if there is none."""
        self.asked()
        with self._lock:
            return next((one for one in self._tables.values() if one.key == key), None)

    def errors(self) -> Mapping[str, str]:
        """Places that could not be read, and why."""
        with self._lock:
            return dict(self._errors)

    def asked(self) -> None:
        """Call when a page is requested: looks are then frequent again."""
        with self._changed:
            self._asked_at = clock.monotonic()
            self._changed.notify_all()

    def changed(self) -> None:
        """Call when something that pages show may have changed."""
        with self._changed:
            self.version += 1

    # -- streams of this process --------------------------------------------------------

    def add_live(self, place: TablePlace, stream: str, live: LiveStream) -> None:
        """Read this stream from memory from now on, and show its table."""
        with self._lock:
            if place.uri not in {one.uri for one in self._given}:
                self._given = (*self._given, place)
            self._live[place.uri, stream] = live
            self._add([place])
        self.changed()

    # -- its life -----------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        if self._kafka is not None:
            self._kafka.start()

    def stop(self) -> None:
        """Stop the threads. Idempotent."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._kafka is not None:
            self._kafka.stop()
        self._thread.join(10)

    def step(self) -> bool:
        """Do the most overdue look. False if none is due, or the budget is used up."""
        if not self.budget.may_watch():
            return False
        now = clock.monotonic()
        with self._lock:
            slow = UNSEEN_TIMES if now - self._asked_at > UNSEEN else 1.0
            chores = [self._places, *(chore for table in self._tables.values() for chore in table.chores())]
        overdue = max(chores, key=lambda one: (now - one.last) / one.every)
        if now - overdue.last < overdue.every * slow:
            return False
        overdue.last = now
        overdue.run()
        self.changed()
        return True

    def _run(self) -> None:
        while True:
            try:
                worked = self.step()
            except Exception as error:  # no error here may stop a stream of this process
                _log.warning("the console could not look", error=type(error).__name__)
                worked = False
            with self._changed:
                if not worked and not self._over:
                    self._changed.wait(IDLE)
                if self._over:
                    return

    def _find(self) -> None:
        for place in self._given:
            try:
                if place.uri not in self._stores:
                    self._stores[place.uri] = open_store(place.uri, place.options)
                    self.budget.count(self._stores[place.uri])
                found = tables_at(place, self._stores[place.uri])
            except HeadgateError as error:
                with self._lock:
                    self._errors[place.shown] = first_error(error)
                continue
            with self._lock:
                self._errors.pop(place.shown, None)
                self._add(found)
        with self._lock:
            known = {place.uri for place in self._given}
            if not self._tables and not self._errors and known:
                self._errors = {place.shown: "there is no table here" for place in self._given}

    def _add(self, places: Iterable[TablePlace]) -> None:
        found = [place for place in places if place.uri not in self._tables]
        self._keys = keys_of(found, self._keys)
        for place in found:
            live = {stream: one for (uri, stream), one in self._live.items() if uri == place.uri}
            self._tables[place.uri] = WatchedTable(self._keys[place.uri], place, self.budget, self._ends, live)
        for (uri, stream), one in self._live.items():
            if uri in self._tables:
                self._tables[uri].live[stream] = one

    def _topics(self) -> set[str]:
        with self._lock:
            if clock.monotonic() - self._asked_at > UNSEEN:
                return set()
            tables = list(self._tables.values())
        return {topic for one in tables for stream in one.now.streams.values() for topic, _ in stream.log.ends}


class WatchedTable:
    """One table. Looks run in one thread at a time, under `lock`; any thread may read `now`."""

    def __init__(
        self, key: str, place: TablePlace, budget: Budget, ends: TopicEnds | None, live: Mapping[str, LiveStream]
    ) -> None:
        self.key = key
        self.place = place
        self.live = dict(live)
        self.lock = threading.Lock()
        """Held during looks."""
        self._budget = budget
        self._reading = threading.Lock()
        self._reader: Table | None = None
        self._now = TableNow(key, place, ends=ends)
        self._table: Table | None = None
        self._tails: dict[str, LogTail] = {}
        self._streams: tuple[str, ...] = ()
        self._ids: list[UUID] = []
        self._open = Chore(RETRY_EVERY, lambda: self._guarded(self._opened))
        self._chores = (
            Chore(NAMES_EVERY, self._look_for_streams),
            Chore(LOG_EVERY, self._look_at_logs),
            Chore(STATE_EVERY, self._look_at_maintenance),
            Chore(PLACES_EVERY, self._look_for_shards),
            Chore(SHARD_EVERY, self._look_at_a_shard),
        )

    @property
    def now(self) -> TableNow:
        """The table as it was last read; streams of this process as they are now."""
        now = self._now
        if not self.live:
            return now
        streams = dict(now.streams)
        for name, live in self.live.items():
            log = live_log(name, live) or StreamLog(name)
            streams[name] = StreamNow(log, clock.monotonic(), None, live.maintenance(), live)
        return replace(now, streams=streams, looked=True)

    def chores(self) -> tuple[Chore, ...]:
        """The kinds of looks at this table."""
        return (self._open,) if self._table is None else self._chores

    def opened(self) -> Table:
        """The table, for reading only. Raises as `open_table` does."""
        with self.lock:
            if self._table is None:
                self._look(self._opened)
            if self._table is None:
                raise HeadgateError(self._now.error or "The table could not be opened.")
            return self._table

    @contextmanager
    def reading(self) -> Iterator[Table]:
        """The table for reading rows, one reader at a time. These reads are requested by a person and do not count in
        the budget. Raises as `open_table` does, and Transient if others read for too long.
        """
        if not self._reading.acquire(timeout=READING_SECONDS):
            raise Transient(
                f"The table is being read for another page, for more than {READING_SECONDS:.0f} s.",
                advice="wait until that page is there, then open this one again",
            )
        try:
            if self._reader is None or self._reader.table_id != self.opened().table_id:
                self._reader = self._open_for_reading()
            yield self._reader
        except HeadgateError:
            self._reader = None  # its columns may have changed: open it anew
            raise
        finally:
            self._reading.release()

    def at(self, checkpoint: str) -> Table:
        """The table at a checkpoint, for reading. Raises NotFound, InvalidInput."""
        return open_table(self.place.uri, checkpoint=checkpoint, storage_options=dict(self.place.options) or None)

    def see_all_names(self) -> None:
        """List the shards now."""
        self._look_for_shards()

    def see_shards(self, wanted: Iterable[UUID], older_than: float) -> None:
        """Read those of these shards now that were last read more than `older_than` seconds ago."""
        with self.lock:
            now = clock.monotonic()
            shards = self._now.shards
            stale = [one for one in wanted if one not in shards or now - shards[one].at > older_than]
            self._look(lambda: self._see(stale))

    # -- looks -----------------------------------------------------------------------

    def _look(self, run: Callable[[], None]) -> None:
        try:
            run()
        except HeadgateError as error:
            self._now = replace(self._now, error=first_error(error), looked=True)
            return
        if self._table is not None:
            self._now = replace(self._now, error=None)

    def _guarded(self, run: Callable[[], None]) -> None:
        with self.lock:
            self._look(run)

    def _opened(self) -> None:
        table = self._open_for_reading()
        home = table.home
        self._ids, self._table = record_ids(home.store), table
        self._budget.count(home.store, *([] if home.wal_store is home.store else [home.wal_store]))
        self._now = replace(TableNow(self.key, self.place, ends=self._now.ends), table=self._table)
        self._tails, self._streams = {}, ()

    def _open_for_reading(self) -> Table:
        table = open_table(self.place.uri, storage_options=dict(self.place.options) or None)
        home = for_reading(table.home, "The console opened the table, which is for reading.")
        return replace(table, home=home)

    @property
    def _opened_table(self) -> Table:
        assert self._table is not None
        return self._table

    def _look_for_streams(self) -> None:
        self._guarded(self._list_streams)

    def _list_streams(self) -> None:
        known = {stream_folder(name).removeprefix(ROOT): name for name in self._streams}
        self._streams = list_streams(self._opened_table.home.records, known=known)
        kept = {name: one for name, one in self._now.streams.items() if name in self._streams}
        self._now = replace(self._now, streams=kept, looked=True)
        if new := [name for name in self._streams if name not in kept and name not in self.live]:
            self._read_logs(new)

    def _look_at_logs(self) -> None:
        self._guarded(lambda: self._read_logs([name for name in self._streams if name not in self.live]))

    def _read_logs(self, names: Iterable[str]) -> None:
        home = self._opened_table.home
        for name in names:
            tail = self._tails.setdefault(name, LogTail(home, name))
            before = self._now.streams.get(name) or StreamNow(StreamLog(name))
            try:
                seen = replace(before, log=tail.look(), at=clock.monotonic(), error=None)
            except HeadgateError as error:
                seen = replace(before, error=first_error(error))
            self._now = replace(self._now, streams={**self._now.streams, name: seen}, looked=True)

    def _look_at_maintenance(self) -> None:
        self._guarded(self._read_maintenance)

    def _read_maintenance(self) -> None:
        home = self._opened_table.home
        for name, stream in self._now.streams.items():
            if name not in self.live:
                seen = replace(stream, maintenance=read_state(home.records, name))
                self._now = replace(self._now, streams={**self._now.streams, name: seen})

    def _look_for_shards(self) -> None:
        self._guarded(self._list_shards)

    def _list_shards(self) -> None:
        table = self._opened_table
        if record_ids(table.home.store) != self._ids:
            self._table = None  # another table was made in its place
            self._opened()
            table = self._opened_table
        ids = shard_folders(table.home.store) - table.record.leftover_shards
        names = self._known_names()
        ordered = sorted(ids, key=lambda one: (names.get(one) is None, names.get(one, ""), str(one)))
        shards = {one: seen for one, seen in self._now.shards.items() if one in ids}
        self._now = replace(self._now, shard_ids=tuple(ordered), names=names, shards=shards)

    def _look_at_a_shard(self) -> None:
        self._guarded(lambda: self._see(stale_first(self._now.shard_ids, self._now.shards)[:1]))

    def _see(self, wanted: Sequence[UUID]) -> None:
        if not wanted:
            return
        names = self._known_names()
        home = self._opened_table.home
        place = Place(home, names)
        seen = parallel.each(
            "console", lambda one: ShardNow(look_at(place, home.shard(one)), clock.monotonic()), wanted
        )
        shards = {**self._now.shards, **dict(zip(wanted, seen, strict=True))}
        self._now = replace(self._now, shards=shards, names=names)

    def _known_names(self) -> dict[UUID, str]:
        table = self._opened_table
        names = [name for one in self.now.streams.values() if one.log.opened for name in one.log.opened.shards]
        return {table.home.shard(name).id: name for name in (*table.sharding.known_names(), *names)}
