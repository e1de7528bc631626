"""Recovery as a party: Spark's checkpoint of the model as the files that Spark would have, rebuilt by the product."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

import fsspec

from headgate import clock
from headgate.checkpoints.spark.directory import SparkCheckpoint as Directory
from headgate.checkpoints.spark.recover import rebuild
from headgate.connectors.objects.port import Bytes, as_buffers
from headgate.shards.wal.entry import SourceRange
from tests.simulation.scheduler import Violation
from tests.simulation.store import SimStore
from tests.simulation.streams import STREAM, TOPIC, SparkCheckpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.world import Place, World

INITIAL = "sources/0/0"


def recoverer(world: World, chance: random.Random) -> None:
    """Somebody runs `recover --apply` where Spark's checkpoint was lost, came back from a backup, or is whole."""
    clock.sleep(chance.choice((1.0, 60.0, 3600.0)))
    if chance.random() < 0.7:
        world.spark.damage(chance)
    here, place = world.here, fsspec.filesystem("memory")
    root = f"/spark {world.seed}"
    try:
        if place.exists(root):
            place.rm(root, recursive=True)
        for name, data in files_of(world.spark, world.partitions).items():
            place.pipe_file(f"{root}/{name}", data)

        def aside(location: str, moved_to: str) -> None:
            world.check_alive()
            world.spark = SparkCheckpoint(f"{world.spark.query}'")

        target = _Target(world)
        rebuilt = rebuild(here.home, STREAM, Directory(f"memory://{root}"), target, move=aside)
        world.check_alive()
        if world.here is here:
            _check(here, rebuilt.query_id, spark_of(target.files, "").ends())
    finally:
        if place.exists(root):
            place.rm(root, recursive=True)


def _check(here: Place, query: str, starts: Mapping[int, int]) -> None:
    """Where nobody took over since, the new checkpoint continues where the table stands (R19). Raises Violation."""
    records = here.table.logs[STREAM].records
    opens = [records[sequence] for sequence in sorted(records) if records[sequence]["kind"] == "open"]
    if opens[-1]["query_id"] != query or sum(one["query_id"] == query for one in opens) > 1:
        return
    stands = {partition: end for (stream, partition), end in here.table.ends.items() if stream == STREAM and end}
    if stands != (found := {partition: start for partition, start in starts.items() if start}):
        raise Violation(f"R19: the rebuilt checkpoint continues at {found}, and the table stands at {stands}")


class _Target(SimStore):
    """The new directory: each file counts from the moment it is there."""

    def __init__(self, world: World) -> None:
        super().__init__(world.objects, world.scheduler, "memory://spark")
        self._world = world
        self.files: dict[str, bytes] = {}

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._scheduler.pause(f"put spark's {key.rpartition('/')[0] or key}")
        self.files[key] = b"".join(as_buffers(data))
        self._world.spark = spark_of(self.files, self._world.spark.query)


# -- files ---------------------------------------------------------------------------------


def files_of(spark: SparkCheckpoint, partitions: int) -> dict[str, bytes]:
    """What Spark would have written; nothing where the checkpoint is lost."""
    if not spark.offsets:
        return {}
    ends = dict.fromkeys(range(partitions), 0)
    ends |= {one.partition: one.until for one in spark.offsets.get(-1, ())}
    found = {"metadata": json.dumps({"id": spark.query}).encode(), INITIAL: b"\0v1\n" + _line(ends)}
    for number in sorted(one for one in spark.offsets if one >= 0):
        ends |= {one.partition: one.until for one in spark.offsets[number]}
        found[f"offsets/{number}"] = b"v1\n{}\n" + _line(ends)
    return found | {f"commits/{number}": b"v1\n{}" for number in spark.commits if number >= 0}


def spark_of(files: Mapping[str, bytes], query: str) -> SparkCheckpoint:
    """What Spark reads from the files; `query`: where they have no id."""
    spark = SparkCheckpoint(json.loads(files["metadata"])["id"] if "metadata" in files else query)
    if INITIAL in files:
        starts = _ends(files[INITIAL])
        spark.adopt({(TOPIC, partition): end for partition, end in starts.items()})
        spark.query = spark.query.removesuffix("+")
    for name in sorted((one for one in files if one.startswith("offsets/")), key=_number):
        before = spark.ends()
        spark.offsets[_number(name)] = tuple(
            SourceRange(TOPIC, partition, before.get(partition, end), end)
            for partition, end in _ends(files[name]).items()
        )
    spark.commits |= {_number(name) for name in files if name.startswith("commits/")}
    return spark


def _number(name: str) -> int:
    return int(name.rpartition("/")[2])


def _line(ends: Mapping[int, int]) -> bytes:
    return json.dumps({TOPIC: {str(partition): end for partition, end in ends.items()}}).encode()


def _ends(data: bytes) -> dict[int, int]:
    """None where the topic was empty until then, which a record of the model's leaves out."""
    found = json.loads(data.splitlines()[-1]).get(TOPIC, {})
    return {int(partition): end for partition, end in found.items()}
