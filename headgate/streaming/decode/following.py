"""Decoders that follow the table: their columns are the table's, whatever these are when a batch is written (R22)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.streaming.decode.contract import Decoder

if TYPE_CHECKING:
    from headgate.table.table import Table


@dataclass(frozen=True)
class Following:
    """Makes the decoder of a table. Picklable where `make` is; for ShardSink's `decode=`."""

    make: Callable[[Table], Decoder] = field(repr=False)
    """May hold credentials."""

    def of(self, table: Table) -> Decoder:
        """The decoder for the columns that the table has. Raises InvalidInput for one that it cannot fill."""
        return self.make(table)


def decoder_of(decode: Decoder | Following | None, table: Table) -> Decoder | None:
    """What turns records into rows of the table as it is now. Raises InvalidInput."""
    return decode.of(table) if isinstance(decode, Following) else decode
