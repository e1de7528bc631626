"""Is the table still there that a direct writer opened, under the same id (R23)?

A store without folders takes an entry of a table that was dropped, and so does a WAL store of its own. Asking before
each put would double the requests, so a writer asks once in a while.
"""

from __future__ import annotations

import structlog

from headgate import clock
from headgate.connectors.lance.base.files import has_versions
from headgate.connectors.lance.datasets import open_dataset
from headgate.errors import DataLoss, Fenced, InvalidInput, StoreError
from headgate.shards.rows.base import check_own
from headgate.shards.shard import TableHome

LOOK_SECONDS = 60.0
"""As often as streams look. An idle writer looks at its next put."""

_log = structlog.get_logger("headgate.shards")


class Presence:
    """Looks at the table's id, at most once per `LOOK_SECONDS`. One thread at a time uses it."""

    def __init__(self, home: TableHome) -> None:
        """The caller has just seen that the table is there."""
        self._home = home
        self._next = clock.monotonic() + LOOK_SECONDS

    def check(self) -> None:
        """Raises Fenced if the table is gone. A store that does not answer, or a damaged base, says nothing."""
        if self._home.table_id is None or clock.monotonic() < self._next:
            return
        self._next = clock.monotonic() + LOOK_SECONDS
        try:
            try:
                check_own(self._home, open_dataset(self._home.store))
            except InvalidInput as error:
                raise dropped(self._home) from error
            except DataLoss as error:
                if not has_versions(self._home.store):
                    raise dropped(self._home) from error
        except StoreError as error:
            _log.debug("the table's id was not read", table=self._home.uri, error=str(error))


def dropped(home: TableHome) -> Fenced:
    """The error of a writer whose table is gone."""
    return Fenced(
        "The table was dropped, overwritten or created anew since this writer opened it.",
        table=home.uri,
        table_id=home.table_id and str(home.table_id),
        advice="open the table that is there now, and put rows of the last minute again: they went to the old table",
    )
