"""A table as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from html import escape

import pyarrow as pa


def as_html(uri: str, schema: pa.Schema, roles: Mapping[str, Collection[str]], sharding: str) -> str:
    """URI, sharding, and a row per column; `roles` maps a role to its columns."""
    rows = [
        (
            column.name,
            f"{column.type}{'' if column.nullable else ' not null'}",
            ", ".join(role for role, names in roles.items() if column.name in names),
        )
        for column in schema
    ]
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<p><b>{escape(uri)}</b>, {escape(sharding)}</p>"
        f"<table><tr><th>column</th><th>type</th><th>role</th></tr>{cells}</table>"
    )
