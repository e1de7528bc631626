"""The results of `headgate doctor` as values, and the checks of this machine.

A check does not raise for a problem: it returns ok, a warning, or bad, with what to do. Results contain no credentials.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal

from headgate.connectors.extras import EXTRAS
from headgate.connectors.jars.lists import JarsMissing, cache_directory, kafka_classpath, spark_jars
from headgate.errors import InvalidInput, MissingExtra
from headgate.spark import versions

State = Literal["ok", "warn", "bad"]

JAVA = (17, 21)
"""Oldest and newest Java: every line of Spark runs on these and on the versions between."""

JAVA_SECONDS = 20
"""Timeout of `java -version`; a slower Java counts as broken."""

LITTLE_ROOM, NO_ROOM = 2 << 30, 200 << 20
"""With fewer free bytes a directory gets a warning, or is bad: Spark's own files and flushes need space there."""

PURPOSES = {
    "pyspark": "streams, `headgate ingest` and Spark's readers",
    "pandas": "Spark's Arrow functions",
    "confluent-kafka": "reading Kafka, `headgate verify` and lag in `headgate status`",
    "s3fs": "a Spark checkpoint directory on S3",
    "botocore": "profiles and roles of AWS",
    "prometheus-client": "the metrics endpoint",
    "delta-spark": "the Delta ledger and mirror",
    "starlette": "the console in the browser",
}
"""What a package of an extra is for."""


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    area: str
    name: str
    state: State
    what: str
    """What was seen."""
    do: str = ""
    """What to do; empty if nothing."""

    def value(self) -> dict[str, Any]:
        """The result as plain values."""
        return {"area": self.area, "check": self.name, "state": self.state, "seen": self.what, "do": self.do}


def check_machine() -> Iterator[Check]:
    """All checks that need neither a table nor Kafka."""
    yield _python()
    yield from check_packages()
    yield from check_spark()
    yield _java()
    yield from _jars()
    yield from _room()
    yield from _processes(dict(os.environ))


# -- Python and packages --------------------------------------------------------------


def _python() -> Check:
    seen = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return Check("python", "Python", "ok" if good else "bad", seen, "" if good else "use Python 3.11 or later")


def check_packages() -> Iterator[Check]:
    """Check every package that headgate requires against its version range; one of an extra may be missing."""
    try:
        lines = requires("headgate") or []
    except PackageNotFoundError:
        yield Check("packages", "headgate", "warn", "run from source; versions are not checked", "install its wheel")
        return
    for name, within, extra in sorted(_wanted(lines), key=lambda one: one[0]):
        yield _package(name, within, extra)


def _wanted(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Name, version range and extra ("": always required) of packages; without the extras for headgate's developers."""
    extras = {"", *EXTRAS.values()}
    for line in lines:
        text, _, marker = line.partition(";")
        match = re.match(r"\s*([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*\(?([^)]*)\)?", text)
        of_extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        extra = of_extra[1] if of_extra else ""
        if match and extra in extras:
            yield match[1].lower().replace("_", "-"), match[2].strip(), extra


def _package(name: str, within: str, extra: str) -> Check:
    try:
        found = version(name)
    except PackageNotFoundError:
        if not extra:
            return Check("packages", name, "bad", "not installed", "install headgate again, with what it requires")
        purpose = f", if you want {PURPOSES[name]}" if name in PURPOSES else ""
        return Check("packages", name, "warn", "not installed", f"pip install 'headgate[{extra}]'{purpose}")
    if not _is_within(found, within):
        do = f"install a version within {within}; constraints.txt has the tested ones"
        return Check("packages", name, "bad", f"{found}, wanted is {within}", do)
    return Check("packages", name, "ok", found)


def _is_within(found: str, within: str) -> bool:
    """True if a version is in a range, or if `packaging` is not installed."""
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return True
    return SpecifierSet(within).contains(found, prereleases=True) if within else True


# -- Spark's line ---------------------------------------------------------------------


def check_spark() -> Iterator[Check]:
    """Which line of Spark is installed, and what it lacks."""
    try:
        line = versions.line()
    except MissingExtra:
        return  # check_packages reports it
    except InvalidInput as error:
        yield Check("spark", "line", "bad", error.what, error.advice or error.next_step)
        return
    yield Check("spark", "line", "ok", f"{line.name}, by {versions.spark_version()}; tested with {line.tested}")
    if line.newest_python is not None and sys.version_info[:2] > line.newest_python:
        newest = ".".join(map(str, line.newest_python))
        seen = f"Spark {line.name} runs on Python {newest} and older"
        yield Check("spark", "Python", "bad", seen, f"use Python {newest}, or a newer Spark")
    for lacking in line.lacks:
        yield Check("spark", "not on this line", "ok", lacking)


# -- Java and jars ---------------------------------------------------------------------


def _java() -> Check:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    do = (
        f"install Java {JAVA[0]} or {JAVA[1]} and set JAVA_HOME, or put java on PATH; only Spark and the broker need it"
    )
    if program is None:
        return Check("java", "Java", "warn", "not found", do)
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("java", "Java", "bad", f"{program} does not run: {type(error).__name__}", do)
    match = re.search(r'version "(?:1\.)?([0-9]+)[^"]*"', done.stderr + done.stdout)
    if match is None:
        return Check("java", "Java", "bad", f"{program} does not say its version", do)
    number = int(match[1])
    seen = f"{match[0].removeprefix('version ').strip(chr(34))} at {program}"
    if number < JAVA[0]:
        return Check("java", "Java", "bad", seen, do)
    if number > JAVA[1]:
        return Check("java", "Java", "warn", seen, f"Spark was tested on Java {JAVA[0]} and {JAVA[1]}; use one of them")
    return Check("java", "Java", "ok", seen)


def _jars() -> Iterator[Check]:
    do = "run `headgate jars fetch`; HEADGATE_CACHE names the directory where it is not the default one"
    try:
        found = spark_jars()
        yield Check("java", "Spark's jars", "ok", f"{len(found)} in {found[0].parent}")
    except JarsMissing as error:
        yield Check("java", "Spark's jars", "warn", error.what, f"{do}; or give Spark the packages yourself")
    try:
        yield Check("java", "Kafka's jars", "ok", f"in {Path(kafka_classpath()).parent}")
    except JarsMissing as error:
        yield Check("java", "Kafka's jars", "warn", error.what, f"{do}; only `headgate kafka` and the demo need them")


# -- room and processes ----------------------------------------------------------------


def _room() -> Iterator[Check]:
    """Free space for Spark's local files, temporary files and shared memory."""
    places = {tempfile.gettempdir(): "temporary files", "/dev/shm": "shared memory", str(cache_directory()): "cache"}
    for place in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if place.strip():
            places[place.strip()] = "Spark's local files"
    for place, purpose in places.items():
        if os.path.isdir(place):
            yield room_of(place, purpose)


def room_of(place: str, purpose: str) -> Check:
    """The free space of a directory."""
    free = shutil.disk_usage(place).free
    seen = f"{free / (1 << 30):.1f} GB free in {place}"
    # Containers often have little shared memory, so this is only a warning.
    enough = LITTLE_ROOM if place != "/dev/shm" else NO_ROOM
    if free < NO_ROOM and place != "/dev/shm":
        return Check("room", purpose, "bad", seen, "free some, or point TMPDIR or SPARK_LOCAL_DIRS elsewhere")
    if free < enough:
        return Check("room", purpose, "warn", seen, "free some before large flushes and shuffles")
    return Check("room", purpose, "ok", seen)


def _processes(environment: dict[str, str]) -> Iterator[Check]:
    """Settings for the workers' Python and for how processes start."""
    worker = environment.get("PYSPARK_PYTHON")
    if worker and shutil.which(worker) is None:
        do = "unset PYSPARK_PYTHON or let it name this Python"
        yield Check("processes", "PYSPARK_PYTHON", "bad", f"{worker} is not there", do)
    elif worker and os.path.realpath(shutil.which(worker) or worker) != os.path.realpath(sys.executable):
        do = "let it name the Python that has headgate, on every executor"
        yield Check("processes", "PYSPARK_PYTHON", "warn", f"{worker} is not this Python, {sys.executable}", do)
    else:
        yield Check("processes", "PYSPARK_PYTHON", "ok", worker or f"not set; {sys.executable} runs this")
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    do = "open tables and stores only in the process that uses them: obstore and Lance do not survive a fork"
    yield Check("processes", "start of processes", "ok", method, do if method == "fork" else "")
    if sys.platform == "darwin" and environment.get("OBJC_DISABLE_INITIALIZE_FORK_SAFETY") != "YES":
        do = "set OBJC_DISABLE_INITIALIZE_FORK_SAFETY=YES: Spark forks its Python workers, and macOS kills them"
        yield Check("processes", "fork safety", "warn", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY is not set", do)
