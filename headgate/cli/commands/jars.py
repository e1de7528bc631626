"""`headgate jars …`: the jars that Spark needs beside its own, and those of the local broker."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from headgate.cli.output import Output, output_option
from headgate.connectors.jars.fetch import fetch_all
from headgate.connectors.jars.lists import JarsMissing, cache_directory, spark_jars


@click.group()
def jars() -> None:
    """The jars that Spark needs beside its own, and those of the local broker."""


@jars.command()
@click.argument("lists", nargs=-1, metavar="[LIST]...")
@output_option
def fetch(lists: tuple[str, ...], output: Output) -> None:
    """Bring the jars to the cache directory (HEADGATE_CACHE), with the Ivy that Spark ships: those of the lists
    `spark` (for the line of Spark that is installed) and `kafka`, or of the ones that are named.

    What is there is left alone. HEADGATE_IVY_SETTINGS names a settings file of Ivy, for a mirror.

    \b
    Example:
      headgate jars fetch
      headgate jars fetch spark --output json
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise JarsMissing(
            "There is no java on PATH or in JAVA_HOME to fetch jars with.",
            advice="install Java 17 or newer, or point JAVA_HOME at it",
        )
    with redirect_stdout(sys.stderr):
        fetch_all(java, lists)
    output.record("The jars are there", {"directory": str(cache_directory() / "jars")})


@jars.command()
@click.option("--comma", is_flag=True, help="One line, as `spark-submit --jars` takes it.")
@output_option
def show(comma: bool, output: Output) -> None:
    """Where the jars for Spark are: what `spark-submit --jars` is given on a cluster.

    \b
    Example:
      spark-submit --jars "$(headgate jars show --comma)" …
      headgate jars show --output json
    """
    found = [str(path) for path in spark_jars()]
    if comma:
        click.echo(",".join(found))
        return
    output.record("Jars for Spark", {"directory": str(Path(found[0]).parent), "jars": found})
