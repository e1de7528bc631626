"""A Spark driver that builds an index and stands before it commits, and before its segments have an outcome.

`python -m tests.search.build.driver TABLE LOG`
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main(uri: str, log: str) -> None:
    import headgate
    from headgate.search.build.build import build_index
    from headgate.search.build.spark import limits_on, on_spark
    from headgate.steps import watching
    from headgate.streaming.spark.session import local_session

    spark = local_session(2, log_file=Path(log))
    table = headgate.open_table(uri)

    def stand(step: str) -> None:
        if step == "looked":
            print("stands", flush=True)
            time.sleep(3600)

    limits = limits_on(spark)
    with watching(stand):
        build_index(
            table.home.store,
            "note",
            "note_idx",
            runner=on_spark(spark),
            limits=type(limits)(tasks=limits.tasks, task_rows=1),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
