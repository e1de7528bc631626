"""A process that has imported what a writer needs, and forks one for each line of its input:
`python -m tests.kills.zygote`.

It touches no store, so that its children may. A line is the arguments of `tests.support.writing` and the pipe to which
the writer tells what was acknowledged, as JSON; the answer is the writer's process id.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from tests.support import writing


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        told, *arguments = json.loads(line)
        if (pid := os.fork()) == 0:
            try:
                os.dup2(os.open(told, os.O_WRONLY), 1)
                writing.main(*arguments)
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
