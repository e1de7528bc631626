"""The code blocks of README.md, CONTRIBUTING.md and docs/, and how they are run.

A page is one story: its blocks run in order, in one namespace and one folder. What a page needs stands in comments
right above its blocks, and counts for the whole page:

    <!-- needs: table -->           `table`, `uri` and `schema`; what it names of lake/orders and ./orders is made
    <!-- needs: spark, kafka -->    `spark`; a broker in place of localhost:9092, with a topic `orders`
    <!-- needs: s3 -->              a bucket `lake`, and credentials in the environment
    <!-- exit: 6 -->                the exit code of the commands of this block
    <!-- run by: tests/… -->        the block is run by that test, which calls `blocks_run_by(__file__)`

| tag | what happens |
|---|---|
| python | executed; streams that it started have worked off their topic before the next block begins |
| console | each line `$ headgate …` is run, and ends with exit code 0; the other lines are output |
| sql | one query, run by `spark.sql` |
| sh | lines of `make`, `pytest` and `pip install 'headgate[…]'` are checked; anything else needs `run by` |
| json, yaml | parsed |
| text | nothing: no code, but a picture, a layout or output |

Any other tag, none included, fails. `/lake/` and `checkpoints/` are folders of the page's own.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from headgate.cli import main as headgate_command
from tests.support.pages import ROOT, Block, commands_of

TAGS = ("python", "console", "sql", "sh", "json", "yaml", "text")
NEEDS = ("table", "spark", "kafka", "s3")
OWN_PROCESS = ("ingest", "demo")
"""Commands with a Spark of their own: in this process they would end the one that is there."""
PATIENCE = 240.0

_BROKER = re.compile(r"\b(localhost|127\.0\.0\.1):9092\b")


@dataclass
class PageRun:
    """One page that is being run in a folder of its own, which is the current one."""

    folder: Path
    namespace: dict[str, Any]
    servers: str | None = None

    def run(self, block: Block) -> None:
        """Run a block. Raises whatever it raises; AssertionError with its place where a command fails."""
        if "run by" in block.told:
            check_run_by(block)
        elif block.tag == "python":
            self._python(block)
        elif block.tag == "console":
            for command in commands_of(block):
                self._command(block, command)
        elif block.tag == "sql":
            self.namespace["spark"].sql(self._placed(block.text)).collect()
        elif block.tag == "sh":
            _check_shell(block)
        elif block.tag == "json":
            json.loads(block.text)
        elif block.tag == "yaml":
            yaml.safe_load(block.text)

    def end(self) -> None:
        """Stop what the blocks started."""
        for query in self._queries():
            query.stop()
        for sink in self._of_type("ShardSink"):
            sink.close()

    def _python(self, block: Block) -> None:
        # As many empty lines before it as there are on the page: a traceback then shows the page's own line.
        code = compile("\n" * block.line + self._placed(block.text), block.page, "exec")
        exec(code, self.namespace)
        until = time.monotonic() + PATIENCE
        for query in self._queries():
            query.processAllAvailable()
            while query.isActive and not self._have_begun() and time.monotonic() < until:
                time.sleep(0.2)
            assert query.exception() is None, f"{block.place}: {query.exception()}"
            assert self._have_begun(), f"{block.place}: nothing was committed within {PATIENCE:.0f} s"

    def _have_begun(self) -> bool:
        return all(sink.last is not None for sink in self._of_type("ShardSink"))

    def _of_type(self, name: str) -> list[Any]:
        return [value for value in list(self.namespace.values()) if type(value).__name__ == name]

    def _queries(self) -> list[Any]:
        return self._of_type("StreamingQuery")

    def _command(self, block: Block, command: str) -> None:
        words = shlex.split(self._placed(command))
        assert words[0] == "headgate", f"{block.place}: only headgate is run here, not {words[0]}"
        wanted = int(block.told.get("exit", "0"))
        if words[1] in OWN_PROCESS:
            code = "from headgate.cli import main; main(prog_name='headgate')"
            done = subprocess.run(
                [sys.executable, "-c", code, *words[1:]], capture_output=True, text=True, timeout=PATIENCE
            )
            got, told = done.returncode, done.stdout + done.stderr
        else:
            result = CliRunner().invoke(headgate_command, words[1:], prog_name="headgate", catch_exceptions=False)
            got, told = result.exit_code, result.output
        assert got == wanted, f"{block.place}: `{command}` exits {got}, not {wanted}:\n{told}"

    def _placed(self, text: str) -> str:
        text = re.sub(r"(?<![\w./:])/lake/", f"{self.folder}/lake/", text)
        # Spark takes a relative path from where its JVM was started, which is not this folder.
        text = re.sub(r"(?<![\w./:])checkpoints/", f"{self.folder}/checkpoints/", text)
        if named := _BROKER.search(text):
            assert self.servers is not None, f"a page that names {named[0]} needs kafka"
        return _BROKER.sub(self.servers or "", text)


def check_run_by(block: Block) -> None:
    """The test that a block names is there, and its code, not its prose, takes the block from the page."""
    name = block.told["run by"]
    test = ROOT / name
    assert test.name.startswith("test_"), f"{block.place}: {name} is no file of tests"
    assert test.exists(), f"{block.place}: there is no {name}"
    calls = [ast.unparse(node) for node in ast.walk(ast.parse(test.read_text())) if isinstance(node, ast.Call)]
    assert "blocks_run_by(__file__)" in calls, f"{block.place}: {name} does not read its blocks from the pages"


def _check_shell(block: Block) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in filter(None, block.text.splitlines()):
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        if words[:1] == ["make"] and len(words) > 1:
            done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, f"{block.place}: {line}: {done.stderr}"
        elif words[:2] == ["pip", "install"] and (named := re.fullmatch(r"headgate\[([a-z0-9,]+)\]", words[-1])):
            unknown = set(named[1].split(",")) - set(project["optional-dependencies"])
            assert not unknown, f"{block.place}: there are no extras {unknown}"
        elif words[0].endswith("/pytest"):
            missing = [word for word in words[1:] if not (ROOT / word).exists()]
            assert not missing, f"{block.place}: there is no {missing}"
        else:
            raise AssertionError(f"{block.place}: nobody runs {line!r}; say who does by <!-- run by: tests/… -->")
