"""A cast of a whole array, and where it fails, which of its values are to blame. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Fits = npt.NDArray[np.bool_]


def cast_each(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Fits]:
    """The values that the type can hold, in it, and for each input whether it is among them.

    All at once; only where that fails the array is halved, so that one bad value costs a few passes more.
    """
    fits = np.ones(len(values), bool)
    _mark(values, kind, fits, 0)
    kept = values if fits.all() else values.filter(pa.array(fits))
    return kept.cast(kind), fits


def _mark(values: pa.Array, kind: pa.DataType, fits: Fits, start: int) -> None:
    try:
        values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) == 1:
            fits[start] = False
            return
        middle = len(values) // 2
        _mark(values.slice(0, middle), kind, fits, start)
        _mark(values.slice(middle), kind, fits, start + middle)
