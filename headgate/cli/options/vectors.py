"""Vectors, as commands take them: columns of them, and one to search by."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
import numpy as np

from headgate.errors import InvalidInput
from headgate.shards.vectors import IndexKind, Metric, Vector

F = TypeVar("F")


def vector_option(prefix: str = "") -> Callable[[F], F]:
    """`--vector COLUMN=METRIC,DIMENSION`, many times; the command gets texts for `vectors_of` as `vectors`."""
    return click.option(  # type: ignore[return-value]
        "--vector",
        "vectors",
        multiple=True,
        metavar="COLUMN=METRIC,DIMENSION",
        help=f"{prefix}A column array<float> that holds vectors: embedding=cosine,384. The metric is cosine, l2 or "
        "dot; ',half' keeps 16 bits of a number, ',IVF_HNSW_SQ' names another index than IVF_PQ, ',train=20000' with "
        "how many rows the base gets it. May be repeated.",
    )


def vectors_of(given: tuple[str, ...]) -> Mapping[str, Vector]:
    """What `create_table` takes. Raises InvalidInput."""
    found: dict[str, Vector] = {}
    for text in given:
        column, equals, rest = text.rpartition("=")
        if not column or not equals:
            raise InvalidInput(f"A vector column has the form COLUMN=METRIC,DIMENSION, not {text!r}.")
        if column in found:
            raise InvalidInput(f"--vector names every column once, and {column!r} twice.")
        found[column] = Vector(**dict(_fact(part.strip(), text) for part in rest.split(",")))
    return found


def _fact(part: str, text: str) -> tuple[str, Any]:
    if part in get_args(Metric):
        return "metric", part
    if part.isdecimal():
        return "dimension", int(part)
    if part in get_args(IndexKind):
        return "index", part
    if part == "half":
        return "half", True
    if part.startswith("train="):
        return "train_rows", int(rows) if (rows := part.removeprefix("train=")).isdecimal() else rows
    raise InvalidInput(f"There is no {part!r} in --vector {text!r}.", advice="write --vector embedding=cosine,384")


def query_vector(text: str) -> np.ndarray[Any, Any]:
    """The numbers of `@FILE.npy`, `@FILE.json` or a JSON list. Raises InvalidInput."""
    try:
        if not text.startswith("@"):
            return np.asarray(json.loads(text), np.float64)
        path = Path(text[1:])
        if path.suffix == ".npy":
            # A pickle in there would run what somebody wrote into it.
            return np.asarray(np.load(path, allow_pickle=False), np.float64)
        return np.asarray(json.loads(path.read_text()), np.float64)
    except OSError as error:
        raise InvalidInput(f"{text[1:]!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, TypeError, EOFError, RecursionError) as error:
        raise InvalidInput(
            f"{text[:80]!r} is not a vector.",
            advice="give @FILE.npy as numpy.save writes it, or a JSON list of numbers",
        ) from error
