from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from headgate.connectors.lance.alignment import aligned
from headgate.connectors.lance.datasets import dataset_in_memory

DECIMALS = pa.array([Decimal(1), None, Decimal("2.50")], pa.decimal128(10, 2))
KINDS = {
    "decimal": DECIMALS,
    "decimal256": DECIMALS.cast(pa.decimal256(40, 2)),
    "in a struct": pa.StructArray.from_arrays([DECIMALS], names=["price"]),
    "in a list": pa.ListArray.from_arrays([0, 1, 3, 3], DECIMALS),
}


def shifted(array: pa.Array) -> pa.Array:
    """The same values at addresses that are multiples of 8 and not of 16, as an entry of a WAL may have them."""

    def moved(buffer: pa.Buffer | None) -> pa.Buffer | None:
        if buffer is None:
            return None
        room = pa.allocate_buffer(buffer.size + 8)
        memoryview(room)[8:] = memoryview(buffer)
        return room.slice(8)

    def rebuilt(one: pa.Array) -> pa.Array:
        count = {pa.types.is_struct: 1, pa.types.is_list: 2}
        own = next((number for check, number in count.items() if check(one.type)), 2)
        children = []
        if pa.types.is_struct(one.type):
            children = [rebuilt(one.field(number)) for number in range(one.type.num_fields)]
        elif pa.types.is_list(one.type):
            children = [rebuilt(one.values)]
        return pa.Array.from_buffers(one.type, len(one), [moved(b) for b in one.buffers()[:own]], children=children)

    return rebuilt(array)


@pytest.mark.parametrize("kind", KINDS)
def test_decimals_at_any_address_become_rows_of_lance(kind: str) -> None:
    rows = pa.table({"id": [1, 2, 3], "value": shifted(KINDS[kind])})
    assert dataset_in_memory(rows).to_table().to_pylist() == rows.to_pylist()
    whole = pa.concat_tables([rows, rows.slice(1, 1)])
    assert aligned(whole).to_pylist() == whole.to_pylist()


def test_rows_without_wide_values_are_not_copied() -> None:
    rows = pa.table({"id": [1, 2], "note": ["a", "b"]})
    assert aligned(rows) is rows
