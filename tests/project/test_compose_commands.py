"""The commands of docs/operations/compose.md fit docker-compose.yml: services, options, addresses, topic and rows."""

from __future__ import annotations

import re
import shlex

import click
import pyarrow as pa

import headgate
from headgate.cli import main
from tests.project.composed import addresses, listens, services
from tests.support.pages import blocks_run_by

COMPOSE = {
    "up": {"--build", "--detach"},
    "exec": {"--no-TTY"},
    "logs": {"--follow"},
    "stop": set(),
}
"""Of Compose's commands, as its reference has them, those that the page uses, with their options."""

_INPUT = re.compile(r"^(.*) <<EOT\n(.*?)^EOT\n", re.MULTILINE | re.DOTALL)


def test_every_command_of_the_page_names_what_there_is() -> None:
    (block,) = blocks_run_by(__file__)
    stream = dict(word[2:].split("=", 1) for word in services()["headgate"]["command"][1:])
    for host, port in addresses(block.text):
        assert port in listens(host), f"{host} does not listen on {port}"
    ((_, given),) = _INPUT.findall(block.text)
    inside: dict[str, list[str]] = {}
    for line in _INPUT.sub(r"\1\n", block.text).splitlines():
        words = shlex.split(line)
        assert words[:2] == ["docker", "compose"], line
        assert words[2] in COMPOSE, line
        rest = words[3:]
        while rest and rest[0].startswith("-"):
            assert rest.pop(0) in COMPOSE[words[2]], line
        if rest:
            assert rest[0] in services(), line
        if words[2] == "exec":
            inside[rest[0]] = rest[1:]

    # What runs in a container: the page's topic and table are those of the stream, and headgate takes its command.
    producer = inside["kafka"]
    assert dict(zip(producer[1::2], producer[2::2], strict=True)) == {
        "--bootstrap-server": stream["servers"],
        "--topic": stream["topic"],
    }
    assert inside["headgate"][0] == "headgate"
    context = click.Context(main, info_name="headgate")
    name, command, arguments = main.resolve_command(context, inside["headgate"][1:])
    assert command is not None
    with command.make_context(name, arguments, parent=context) as called:
        assert (called.params["uri"], called.params["servers"]) == (stream["table"], stream["servers"])

    # The lines that are sent become rows of the table that the stream makes.
    values = pa.array([line.encode() for line in given.splitlines()], pa.binary())
    decoded = headgate.decode.json(str(stream["create"])).decode(values)
    assert (decoded.rows.num_rows, len(decoded.bad)) == (len(values), 0)
