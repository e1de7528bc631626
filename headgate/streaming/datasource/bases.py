"""The base classes of Python data sources in the installed Spark. The import raises InvalidInput if Spark does not
support them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.spark import versions

versions.check_data_sources()

from pyspark.sql import datasource  # noqa: E402
from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING or versions.line().read_limits:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    SupportsTriggerAvailableNow = object

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    DataSourceStreamArrowWriter = versions.stream_writer(datasource)

__all__ = [
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
]
