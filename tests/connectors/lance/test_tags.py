"""Tags hold versions of a base: what is there is told from a store that does not answer."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headgate.connectors.lance.base.tags import held_versions, hold_version
from headgate.connectors.objects.local import LocalStore
from headgate.errors import NotFound, Transient
from headgate.retry import Retry
from tests.support.datasets import LanceFaultyStore
from tests.support.stores import Fault


def test_a_version_that_is_gone_is_not_found_and_a_store_that_is_away_is_transient(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path))
    faulty = LanceFaultyStore(LocalStore(str(tmp_path)))
    store = faulty.retrying(Retry(attempts=0))
    with pytest.raises(NotFound, match="Version 9"):
        hold_version(store, "kept", 9)
    faulty.script("list", Fault.FAIL)
    with pytest.raises(Transient):
        hold_version(store, "kept", 9)
    hold_version(store, "kept", 1)
    hold_version(store, "kept", 1)
    assert dict(held_versions(store)) == {"kept": 1}
