"""Download the jars of `jar_lists/*.xml` to the cache directory with Spark's Ivy, and those of the installed Spark:
`jar_lists/lines/spark-<its line>.xml`, named `spark`. Lists of `jar_lists/optional/` (`s3a` is that of the installed
Spark too), and of other Spark versions, are downloaded only if named.

`$HEADGATE_CACHE/jars/<list>` holds exactly the jars of its list. A receipt, written last, names the list and the
size of every jar; without a receipt that agrees with what is there, the jars are fetched again. Ivy writes into a
staging directory, so nothing half-written ever has a jar's final name.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from headgate.connectors.jars.lists import JarsMissing, cache_directory
from headgate.errors import HeadgateError, InvalidInput, MissingExtra
from headgate.spark.versions import spark_line

LISTS = Path(__file__).with_name("jar_lists")
RECEIPT = ".receipt.json"


def main() -> int:
    """Entry point of `python -m headgate.connectors.jars.fetch`."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--java", default="java", help="the java program that runs Ivy")
    arguments.add_argument("--folder", type=Path, default=LISTS, help="from the lists")
    arguments.add_argument("names", nargs="*", help="of lists (spark, kafka …); default: all but the optional ones")
    given = arguments.parse_args()
    try:
        fetch_all(given.java, given.names, given.folder)
    except HeadgateError as error:
        print(f"{error.what} Next: {error.advice}", file=sys.stderr)
        return 1
    return 0


def fetch_all(java: str, names: Sequence[str] = (), folder: Path = LISTS) -> None:
    """Fetch missing jars and report it. Prints nothing if nothing is missing.

    Raises InvalidInput for an unknown list and for a Spark version without a list, JarsMissing, MissingExtra.
    """
    lines = {path.stem: path for path in folder.glob("lines/*.xml")}
    lists = [*_installed(lines), *sorted(folder.glob("*.xml"))]
    if names:
        every = [*lists, *lines.values(), *folder.glob("optional/*.xml")]
        own = f"-{spark_line()}"
        known = {path.stem: path for path in every} | {path.stem.removesuffix(own): path for path in every}
        if unknown := sorted(set(names) - set(known)):
            raise InvalidInput(
                f"Jar list {unknown[0]!r} not found.", advice=f"the lists are {', '.join(sorted(known))}"
            )
        lists = [known[name] for name in dict.fromkeys(names)]
    cache = cache_directory().absolute()
    if all(is_complete(jar_list, cache / "jars" / jar_list.stem) for jar_list in lists):
        return
    if find_ivy() is None:
        what = "Fetching jars needs Ivy, which comes with Spark, but Spark is not installed."
        raise MissingExtra(what, extra="spark", advice="pip install 'headgate[spark]'")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Two checkouts may share one cache. The second waits for the lock and then finds the jars complete.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for jar_list in lists:
            target = cache / "jars" / jar_list.stem
            if not is_complete(jar_list, target):
                fetch(jar_list, target, cache, java)


def _installed(lines: Mapping[str, Path]) -> list[Path]:
    line = spark_line()
    if not lines or line is None:
        return []
    if f"spark-{line}" not in lines:
        raise InvalidInput(
            f"headgate has no jar list for Spark {line}.", advice=f"the lists are {', '.join(sorted(lines))}"
        )
    return [lines[f"spark-{line}"]]


def jar_names(jar_list: Path) -> set[str]:
    return {f"{d.get('name')}-{d.get('rev')}.jar" for d in ElementTree.parse(jar_list).iter("dependency")}


def is_complete(jar_list: Path, target: Path) -> bool:
    try:
        receipt = json.loads((target / RECEIPT).read_text())
    except (OSError, ValueError):
        return False
    return bool(receipt == receipt_for(jar_list, target) and set(receipt["sizes"]) == jar_names(jar_list))


def receipt_for(jar_list: Path, target: Path) -> dict[str, object]:
    return {
        "list": hashlib.sha256(jar_list.read_bytes()).hexdigest(),
        "sizes": {jar.name: jar.stat().st_size for jar in sorted(target.glob("*.jar"))},
    }


def fetch(jar_list: Path, target: Path, cache: Path, java: str) -> None:
    """Stage, check, then swap: 1. Ivy into a staging directory; 2. every jar of the list is there and opens;
    3. remove the old directory; 4. rename the staging directory; 5. the receipt. Raises JarsMissing.
    """
    wanted = jar_names(jar_list)
    staging = target.with_name(f".{target.name}.staging")
    log = cache / f"ivy-{jar_list.stem}.log"
    staging.mkdir(parents=True, exist_ok=True)
    for attempt in (1, 2):
        shutil.rmtree(staging)
        staging.mkdir()
        run_ivy(jar_list, staging, cache / "ivy", log, java, len(wanted))
        bad = wanted - {jar.name for jar in staging.glob("*.jar") if opens(jar)}
        if not bad:
            break
        # Ivy's cache may be damaged by an interrupted run: the second attempt starts without it.
        shutil.rmtree(cache / "ivy", ignore_errors=True)
        if attempt == 2:
            some = ", ".join(sorted(bad)[:3]) + (" …" if len(bad) > 3 else "")
            what = f"Fetching {len(bad)} of {len(wanted)} jars failed ({some})."
            raise JarsMissing(
                what, advice=f"read {log}; for a mirror set HEADGATE_IVY_SETTINGS to an Ivy settings file"
            )
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)
    (target / RECEIPT).write_text(json.dumps(receipt_for(jar_list, target), indent=1))


def find_ivy() -> Path | None:
    """Spark's own Ivy, found without importing Spark."""
    spark = find_spec("pyspark")
    places = spark.submodule_search_locations if spark is not None else None
    return next((jar for place in places or () for jar in Path(place).glob("jars/ivy-*.jar")), None)


def run_ivy(jar_list: Path, staging: Path, ivy_cache: Path, log: Path, java: str, total: int) -> None:
    ivy = find_ivy()
    assert ivy is not None
    command = [java, "-jar", str(ivy), "-ivy", str(jar_list), "-cache", str(ivy_cache), "-confs", "default"]
    command += ["-retrieve", f"{staging}/[artifact]-[revision].[ext]"]
    # Ivy's own settings file names a mirror of the repository.
    if settings := os.environ.get("HEADGATE_IVY_SETTINGS"):
        command += ["-settings", settings]
    done = 0
    report(f"Fetching {total} jars for {jar_list.stem}", end="")
    with (
        log.open("w") as lines,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            lines.write(line)
            if "[SUCCESSFUL ]" in line:
                done += 1
                if sys.stdout.isatty():
                    report(f"\rFetching jars for {jar_list.stem}: {done} of {total}\033[K", end="")
    report("")


def opens(jar: Path) -> bool:
    try:
        with zipfile.ZipFile(jar):
            return True
    except (OSError, zipfile.BadZipFile):
        return False


def report(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


if __name__ == "__main__":
    sys.exit(main())
