from __future__ import annotations

import pytest

pytest_plugins = ["services"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under xdist, what needs Spark or Kafka runs on one worker, so that one JVM of each serves all."""
    for item in items:
        if item.get_closest_marker("spark") or item.get_closest_marker("kafka"):
            item.add_marker(pytest.mark.xdist_group("jvm"))
