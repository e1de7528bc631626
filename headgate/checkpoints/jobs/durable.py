"""Syncs what a collection relies on before it deletes anything (R21).

A WAL entry goes because an SSTable has its rows, an SSTable because the base has them, an old manifest because there is
a later one, and what a pin held because the pin is gone. Native Lance syncs nothing that it writes, and headgate's
deletes are not synced either: a power cut could remove what the collection relied on, or bring a pin back, and keep the
deletes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from uuid import UUID

from headgate.checkpoints.log import pins as consumer_pins
from headgate.checkpoints.snapshots import checkpoint as table_checkpoint
from headgate.connectors.lance.base.damage import set_aside
from headgate.connectors.lance.base.files import local_root, sync_files, sync_tree
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.objects.errors import os_errors
from headgate.connectors.objects.files import sync_path
from headgate.shards import names
from headgate.shards.rows.sstable import sstable_key
from headgate.shards.shard import Shard, TableHome


def require_on_disk(home: TableHome, shard_ids: Iterable[UUID]) -> None:
    """Sync the base, and the latest manifests of these shards with the SSTables they name, whoever wrote them.

    Call it after the manifests and pins by which garbage was chosen were read. On stores that are durable by themselves
    this does nothing. Raises DataLoss if the base has lost a file of rows, StoreError.
    """
    root = local_root(home.store)
    if root is None:
        return
    set_aside(home.store)
    sync_base(home.store)
    for shard_id in sorted(shard_ids):
        shard = Shard(home, shard_id)
        manifest = shard.manifests.latest()
        if manifest is not None:
            for sstable in manifest.sstables:
                sync_tree(home.store, sstable_key(shard, sstable.path))
            with os_errors("sync", home.uri, names.manifest_folder(shard_id)):
                sync_files([os.path.join(root, names.manifest_key(shard_id, manifest.version))])
    for folder in (table_checkpoint.ROOT, consumer_pins.ROOT):
        with os_errors("sync", home.uri, folder):
            # One folder per name.
            for path, _, _ in os.walk(home.records.locate(folder.rstrip("/"))[0]):
                sync_path(path)
