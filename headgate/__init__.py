"""headgate: the front door between Kafka and a Lance lake.

Names are imported when they are first used, so that `import headgate` loads neither Spark nor Lance.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate import errors
    from headgate.caches import set_cache_bytes
    from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
    from headgate.shards.config import WriterConfig
    from headgate.shards.sharding import bucket, by_partition, single
    from headgate.shards.vectors import vector
    from headgate.shards.writer import ShardWriter
    from headgate.streaming.datasource.append import by_shard
    from headgate.streaming.datasource.log_reader import read_log
    from headgate.streaming.datasource.search import nearest_df, search_df
    from headgate.streaming.datasource.source import HeadgateDataSource, register
    from headgate.streaming.decode import api as decode
    from headgate.streaming.delta.ledger import rebuild_ledger
    from headgate.streaming.delta.mirror import DeltaMirror
    from headgate.streaming.forward import forward_dead_letters
    from headgate.streaming.kafka import source as kafka
    from headgate.streaming.letters import dead_letter_summary
    from headgate.streaming.observe.logs import configure_logs
    from headgate.streaming.options import SinkOptions
    from headgate.streaming.replay import replay_dead_letters
    from headgate.streaming.rewind import rewind
    from headgate.streaming.sink import ShardSink
    from headgate.streaming.spark.session import session
    from headgate.streaming.verify.verify import verify
    from headgate.streaming.wait import run
    from headgate.table.create import create_table
    from headgate.table.fsck import fsck
    from headgate.table.recover import recover
    from headgate.table.table import Table, open_table

__all__ = [
    "BasePolicy",
    "CompactLimits",
    "DeltaMirror",
    "HeadgateDataSource",
    "ShardSink",
    "ShardWriter",
    "SinkOptions",
    "Table",
    "WriterConfig",
    "bucket",
    "by_partition",
    "by_shard",
    "configure_logs",
    "create_table",
    "dead_letter_summary",
    "decode",
    "errors",
    "forward_dead_letters",
    "fsck",
    "kafka",
    "nearest_df",
    "open_table",
    "read_log",
    "rebuild_ledger",
    "recover",
    "register",
    "replay_dead_letters",
    "rewind",
    "run",
    "search_df",
    "session",
    "set_cache_bytes",
    "single",
    "verify",
    "vector",
]

_PLACES = {
    "BasePolicy": "headgate.checkpoints.jobs.policy:BasePolicy",
    "CompactLimits": "headgate.checkpoints.jobs.policy:CompactLimits",
    "DeltaMirror": "headgate.streaming.delta.mirror:DeltaMirror",
    "HeadgateDataSource": "headgate.streaming.datasource.source:HeadgateDataSource",
    "ShardSink": "headgate.streaming.sink:ShardSink",
    "ShardWriter": "headgate.shards.writer:ShardWriter",
    "SinkOptions": "headgate.streaming.options:SinkOptions",
    "Table": "headgate.table.table:Table",
    "WriterConfig": "headgate.shards.config:WriterConfig",
    "bucket": "headgate.shards.sharding:bucket",
    "by_partition": "headgate.shards.sharding:by_partition",
    "by_shard": "headgate.streaming.datasource.append:by_shard",
    "configure_logs": "headgate.streaming.observe.logs:configure_logs",
    "create_table": "headgate.table.create:create_table",
    "dead_letter_summary": "headgate.streaming.letters:dead_letter_summary",
    "decode": "headgate.streaming.decode.api:",
    "errors": "headgate.errors:",
    "forward_dead_letters": "headgate.streaming.forward:forward_dead_letters",
    "fsck": "headgate.table.fsck:fsck",
    "kafka": "headgate.streaming.kafka.source:",
    "nearest_df": "headgate.streaming.datasource.search:nearest_df",
    "open_table": "headgate.table.table:open_table",
    "read_log": "headgate.streaming.datasource.log_reader:read_log",
    "rebuild_ledger": "headgate.streaming.delta.ledger:rebuild_ledger",
    "recover": "headgate.table.recover:recover",
    "register": "headgate.streaming.datasource.source:register",
    "replay_dead_letters": "headgate.streaming.replay:replay_dead_letters",
    "rewind": "headgate.streaming.rewind:rewind",
    "run": "headgate.streaming.wait:run",
    "search_df": "headgate.streaming.datasource.search:search_df",
    "session": "headgate.streaming.spark.session:session",
    "set_cache_bytes": "headgate.caches:set_cache_bytes",
    "single": "headgate.shards.sharding:single",
    "verify": "headgate.streaming.verify.verify:verify",
    "vector": "headgate.shards.vectors:vector",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("headgate")
    try:
        place, _, attribute = _PLACES[name].partition(":")
    except KeyError:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}") from None
    from headgate.connectors.extras import needs

    with needs():
        module = import_module(place)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value
