"""Combines a row's score and its distance into one number. Pure.

Promises: a missing score or distance adds nothing; rows with an equal score, or an equal distance, get the same for it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from headgate.errors import InvalidInput

Fuse: TypeAlias = Literal["rrf", "weighted"]
"""By ranks alone, or by a weighted sum of score and distance, each relative to those of the other rows."""

Numbers = npt.NDArray[np.float64]

RRF = 60
"""Added to each rank, as in the paper, so that the first few ranks do not decide alone."""


def check_fuse(fuse: Any, weight: Any) -> None:
    """Raises InvalidInput for invalid arguments."""
    if fuse not in get_args(Fuse):
        raise InvalidInput(f"fuse must be one of {', '.join(get_args(Fuse))}, got {fuse!r}.")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
        raise InvalidInput(f"weight must be a number from 0 to 1, got {weight!r}.")


def relevance(scores: Numbers, distances: Numbers, fuse: Fuse, weight: float) -> Numbers:
    """The relevance of each row; higher is better. NaN means no score or no distance. `weight` is the weight of the
    text in a weighted sum of score / best score, and of the distance scaled from 0 (farthest) to 1 (nearest).
    """
    if fuse == "rrf":
        return _by_rank(-scores) + _by_rank(distances)
    best, nearest, farthest = (_of(scores, np.max), _of(distances, np.min), _of(distances, np.max))
    span = farthest - nearest
    text = scores / best if best > 0 else np.zeros(len(scores))
    closeness = (farthest - distances) / span if span > 0 else np.where(np.isnan(distances), np.nan, 1.0)
    found: Numbers = weight * np.nan_to_num(text) + (1 - weight) * np.nan_to_num(np.clip(closeness, 0, 1))
    return found


def _by_rank(numbers: Numbers) -> Numbers:
    """1 / (60 + rank); the smallest number has rank 1."""
    there = np.flatnonzero(~np.isnan(numbers))
    found = np.zeros(len(numbers))
    ascending = np.sort(numbers[there])
    found[there] = 1 / (RRF + 1 + np.searchsorted(ascending, numbers[there]))
    return found


def _of(numbers: Numbers, choose: Any) -> float:
    finite = numbers[np.isfinite(numbers)]
    return float(choose(finite)) if len(finite) else 0.0
