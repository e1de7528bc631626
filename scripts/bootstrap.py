"""Make `.venv` what pyproject.toml and constraints.txt say, and fetch the jars. `make setup` runs this.

With lines of Spark (`bootstrap.py 3.5 4.0`) it makes `.venv-spark-3.5` and so on as well: the few packages of
constraints-spark-3.5.txt, in front of everything that `.venv` has.

Run again it checks and does nothing. Interrupted, it starts again where it stopped: the stamp of a step is
removed before the step and written after it. What is missing on the machine is said in one sentence, exit code 1.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
UV = VENV / "bin" / "uv"
"""uv where this script fetched it; there only if it works."""
STAMP = ".headgate-packages"
EXTRAS = "kafka,spark,s3,delta,ui,dev,docs"
# Builds run inside the virtual environment, so that constraints.txt holds for what builds as well.
# hatchling and editables build headgate; setuptools and wheel build pyspark, which comes as source only.
BUILD_TOOLS = ["hatchling", "editables", "setuptools", "wheel"]
OLDEST_JAVA = 17  # what Spark 4 runs on


def main() -> None:
    """Check the machine, then make the environments, their packages and the jars, in this order."""
    java = find_java()
    uv = shutil.which("uv")
    made = [make(VENV, packages_key(), uv, install_packages)]
    for line in sys.argv[1:]:
        own = ROOT / f"constraints-spark-{line}.txt"
        if not own.exists():
            lines = sorted(path.stem.rpartition("-")[2] for path in ROOT.glob("constraints-spark-*.txt"))
            stop(f"There is no environment for Spark {line}: the lines beside that of .venv are {', '.join(lines)}.")
        made.append(make(ROOT / f".venv-spark-{line}", own.read_text(), uv, partial(install_line, own)))
    for python in made:
        fetch = subprocess.run(
            [str(python), "-m", "headgate.connectors.jars.fetch", "--java", java], stdin=subprocess.DEVNULL
        )
        if fetch.returncode != 0:
            sys.exit(fetch.returncode)


def make(venv: Path, key: str, uv: str | None, install: Callable[[Path, str | None], None]) -> Path:
    """The Python of an environment that has the packages of this key."""
    python, stamp = venv / "bin" / "python", venv / STAMP
    if not python.exists() or venv_version(venv) != "{}.{}".format(*sys.version_info):
        make_venv(venv, uv)
    if not stamp.exists() or stamp.read_text() != key:
        stamp.unlink(missing_ok=True)
        install(python, uv)
        stamp.write_text(key)
    return python


def find_java() -> str:
    """The java that Spark would take: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = f"headgate needs Java {OLDEST_JAVA} or newer"
    if java is None or not Path(java).exists():
        stop(f"{wanted}, and found none: install it, or point JAVA_HOME at it.")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    # macOS has a `java` that only says where to get one.
    if answer.returncode != 0 or version is None:
        stop(f"{wanted}, and {java} does not run: install it, or point JAVA_HOME at it.")
    if int(version[1]) < OLDEST_JAVA:
        stop(f"{wanted}, and {java} is Java {version[1]}: install a newer one, or point JAVA_HOME at it.")
    return java


def packages_key() -> str:
    """Changes when other packages are wanted, not when the settings of a linter change."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [project["build-system"], project["project"], (ROOT / "constraints.txt").read_text(), EXTRAS]
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


def venv_version(venv: Path) -> str:
    settings = venv / "pyvenv.cfg"
    if not settings.exists():
        return "unknown"  # half removed
    version = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", settings.read_text(), re.MULTILINE)
    return version[1] if version else "unknown"


def make_venv(venv: Path, uv: str | None) -> None:
    say(f"Making {venv.name} with Python {sys.version.split()[0]}")
    if uv:
        remove(venv)
        run([uv, "venv", "--quiet", "--python", sys.executable, str(venv)])
        return
    if not importlib.util.find_spec("venv") or not importlib.util.find_spec("ensurepip"):
        stop("This Python has no venv module: install it (Debian and Ubuntu: apt install python3-venv), or install uv.")
    run([sys.executable, "-m", "venv", "--clear", str(venv)])


def remove(venv: Path) -> None:
    """uv refuses a folder that lost its pyvenv.cfg, even with --clear, which the older releases ignore."""
    if venv.is_symlink():
        venv.unlink()
    elif venv.exists():
        shutil.rmtree(venv)


def install_packages(python: Path, uv: str | None) -> None:
    uv = uv or fetched_uv(python)
    say(f"Installing packages with {'uv' if uv else 'pip, a few minutes the first time'}")
    install = installer(python, uv)
    run([*install, "-c", "constraints.txt", *BUILD_TOOLS])
    run([*install, "-c", "constraints.txt", "--no-build-isolation", "-e", f".[{EXTRAS}]"])


def fetched_uv(python: Path) -> str | None:
    """uv, which takes a fifth of pip's time. None where it cannot be had, fails, or lacks settings that pip has."""
    pip = [str(python), "-m", "pip"]
    settings = subprocess.run([*pip, "config", "list"], capture_output=True, text=True)
    if settings.returncode != 0 or re.search(r"index-url|no-index|proxy", settings.stdout):
        return None
    steps = [
        [*pip, "install", "--quiet", "--disable-pip-version-check", "-c", "constraints.txt", "uv"],
        [*installer(python, str(UV)), "-c", "constraints.txt", *BUILD_TOOLS],
    ]
    if any(subprocess.run(step, cwd=ROOT, capture_output=True).returncode for step in steps):
        UV.unlink(missing_ok=True)
        return None
    return str(UV)


def install_line(own: Path, python: Path, uv: str | None) -> None:
    """The packages that one line of Spark has for itself. Whatever else is imported comes from .venv, which is behind
    them on the path: the builder of pyspark too.
    """
    uv = uv or (str(UV) if UV.exists() else None)
    say(f"Installing {', '.join(packages(own))} with {'uv' if uv else 'pip, some minutes the first time'}")
    behind = packages_of(VENV / "bin" / "python")
    Path(packages_of(python), "zz-headgate.pth").write_text(f"import site; site.addsitedir({behind!r})\n")
    command = python.with_name("headgate")
    command.write_text(f"#!{python}\nfrom headgate.cli import main\n\nmain()\n")
    command.chmod(0o755)
    install = [*installer(python, uv), "--no-deps", "--no-build-isolation", "-r", own.name]
    run(install if uv else [*install, "--ignore-installed"])


def packages(constraints: Path) -> list[str]:
    lines = constraints.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def packages_of(python: Path) -> str:
    """The folder of an environment's own packages."""
    ask = [str(python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()


def installer(python: Path, uv: str | None) -> list[str]:
    if uv:
        install = [uv, "pip", "install", "--python", str(python)]
    else:
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode != 0:
            run([str(python), "-m", "ensurepip"])  # an environment that uv made has no pip
        install = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    return install if sys.stdout.isatty() else [*install, "--quiet"]


def run(command: list[str]) -> None:
    result = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        stop(f"{Path(command[0]).name} failed (above is why): once that is cured, run make setup again.")


def say(line: str) -> None:
    print(line, flush=True)


def stop(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
