"""Delta Lake support: checks of a session, and tables, columns, types and texts in SQL.

Delta is optional: nothing here imports its package, and everything goes through Spark SQL. Writes nothing. Everything
in a statement that comes from outside goes through `quoted`, `sql_type` or `text`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.connectors.objects import redact
from headgate.errors import InvalidInput
from headgate.streaming.spark.session import has_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def delta_settings() -> dict[str, str]:
    """Settings that a Spark session needs for Delta, besides Delta's jars."""
    return {"spark.sql.extensions": EXTENSION, "spark.sql.catalog.spark_catalog": CATALOG}


def check_delta(spark: SparkSession, what: str) -> None:
    """Raises InvalidInput if the session cannot write Delta tables; `what` names the user."""
    settings = {name: str(spark.conf.get(name, "")) for name in delta_settings()}
    missing = missing_settings(settings)
    if not missing and not has_class(spark, EXTENSION):
        missing = "Delta's jars"
    if missing:
        raise InvalidInput(
            f"{what} needs a Spark session with Delta Lake, but this session has no {missing}.",
            advice="pip install 'headgate[delta]' and build the session with delta.configure_spark_with_delta_pip"
            f"(builder), with {', '.join(f'{name}={value}' for name, value in delta_settings().items())}",
        )


def missing_settings(settings: Mapping[str, str]) -> str | None:
    """The first setting that Delta needs and the session lacks; None if it has all."""
    for name, wanted in delta_settings().items():
        if wanted not in [part.strip() for part in settings.get(name, "").split(",")]:
            return f"{name}={wanted}"
    return None


class DeltaName:
    """A Delta table by its path, or by its name in a catalog: `schema.table` or `catalog.schema.table`."""

    def __init__(self, given: str, what: str = "target") -> None:
        """Raises InvalidInput for an ambiguous or invalid name."""
        parts = given.split(".")
        named = 2 <= len(parts) <= 3 and all(map(_PART.fullmatch, parts))
        if not named and "/" not in given:
            raise InvalidInput(
                f"The {what} {redact(given)[:200]!r} must be a path or a name in a catalog.",
                advice="use a path with a slash, such as ./ledger, or a name such as schema.table",
            )
        self.given = str(Path(given).absolute()) if not named and ":" not in given else given
        """A local path is made absolute: Spark's processes have different working directories."""
        self.path = None if named else self.given

    @property
    def shown(self) -> str:
        """For people: without credentials."""
        return redact(self.given)

    @property
    def sql(self) -> str:
        """As SQL names it."""
        if self.path is None:
            return ".".join(map(quoted, self.given.split(".")))
        return f"delta.{quoted(self.path)}"

    def exists(self, spark: SparkSession) -> bool:
        """True if the Delta table exists. Raises InvalidInput for another kind of table."""
        if self.path is not None:
            return bool(_is_delta(spark, self))
        if not spark.catalog.tableExists(self.given):
            return False
        if not _is_delta(spark, self):
            raise InvalidInput(f"{self.shown} is not a Delta table.", advice="choose another name; nothing was written")
        return True


def _is_delta(spark: SparkSession, name: DeltaName) -> bool:
    from pyspark.errors import AnalysisException

    try:
        return bool(spark.sql(f"DESCRIBE DETAIL {name.sql}").collect()[0]["format"] == "delta")
    except AnalysisException:
        return False


def quoted(name: str) -> str:
    """A quoted SQL identifier, for any name."""
    return f"`{name.replace('`', '``')}`"


def sql_type(kind: DataType) -> str:
    """A type in SQL, with quoted field names and without nullability."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(one.name)}: {sql_type(one.dataType)}' for one in kind)}>"
    if isinstance(kind, ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return kind.simpleString()


def text(value: str) -> str:
    """A SQL string literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
