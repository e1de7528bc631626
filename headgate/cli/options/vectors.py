"""Vector options: vector columns of a table, and a query vector."""

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
    """`--vector COLUMN=METRIC,DIMENSION`, repeatable; the command gets texts for `vectors_of` as `vectors`."""
    return click.option(  # type: ignore[return-value]
        "--vector",
        "vectors",
        multiple=True,
        metavar="COLUMN=METRIC,DIMENSION",
        help=f"{prefix}A vector column of type array<float>: embedding=cosine,384. The metric is cosine, l2 or dot; "
        "',half' stores 16-bit floats, ',IVF_HNSW_SQ' chooses that index instead of IVF_PQ, ',train=20000' sets the "
        "number of rows from which the base gets an index. May be repeated.",
    )


def vectors_of(given: tuple[str, ...]) -> Mapping[str, Vector]:
    """The `vectors` argument of `create_table`. Raises InvalidInput."""
    found: dict[str, Vector] = {}
    for text in given:
        column, equals, rest = text.rpartition("=")
        if not column or not equals:
            raise InvalidInput(f"A vector column must have the form COLUMN=METRIC,DIMENSION, got {text!r}.")
        if column in found:
            raise InvalidInput(f"--vector must name each column once, got {column!r} twice.")
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
    raise InvalidInput(f"Invalid part {part!r} in --vector {text!r}.", advice="write --vector embedding=cosine,384")


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
        raise InvalidInput(f"Reading {text[1:]!r} failed: {error.strerror or error}.") from error
    except (ValueError, TypeError, EOFError, RecursionError) as error:
        raise InvalidInput(
            f"{text[:80]!r} is not a valid vector.",
            advice="use @FILE.npy as numpy.save writes it, or a JSON list of numbers",
        ) from error
