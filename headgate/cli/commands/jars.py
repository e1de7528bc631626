"""`headgate jars …`: the extra jars for Spark, and those of the local Kafka broker."""

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
    """Fetch and list the extra jars for Spark, and those of the local Kafka broker."""


@jars.command(short_help="Download the jars to the cache directory.")
@click.argument("lists", nargs=-1, metavar="[LIST]...")
@output_option
def fetch(lists: tuple[str, ...], output: Output) -> None:
    """Download jars to the cache directory (HEADGATE_CACHE) with Spark's Ivy: the lists `spark` (for the installed
    Spark version) and `kafka`, or only the lists you name.

    Jars that are there already are not downloaded again. For a mirror, set HEADGATE_IVY_SETTINGS to an Ivy settings
    file.

    \b
    Example:
      headgate jars fetch
      headgate jars fetch spark --output json
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise JarsMissing(
            "No java found on PATH or in JAVA_HOME; it is needed to fetch jars.",
            advice="install Java 17 or newer, or point JAVA_HOME at it",
        )
    with redirect_stdout(sys.stderr):
        fetch_all(java, lists)
    output.record("The jars are there", {"directory": str(cache_directory() / "jars")})


@jars.command(short_help="Show the paths of the jars for Spark.")
@click.option("--comma", is_flag=True, help="Print one comma-separated line, as `spark-submit --jars` takes it.")
@output_option
def show(comma: bool, output: Output) -> None:
    """Show the paths of the jars for Spark, to pass to `spark-submit --jars` on a cluster.

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
