"""Make `.venv` what pyproject.toml and constraints.txt say, and fetch the jars. `make setup` runs this.

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
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".headgate-packages"
EXTRAS = "kafka,spark,s3,delta,ui,dev,docs"
# Builds run inside the virtual environment, so that constraints.txt holds for what builds as well.
# hatchling and editables build headgate; setuptools and wheel build pyspark, which comes as source only.
BUILD_TOOLS = ["hatchling", "editables", "setuptools", "wheel"]
OLDEST_JAVA = 17  # what Spark 4 runs on


def main() -> None:
    """Check the machine, then make the environment, the packages and the jars, in this order."""
    java = find_java()
    uv = shutil.which("uv")
    key = packages_key()
    if not VENV_PYTHON.exists() or venv_version() != "{}.{}".format(*sys.version_info):
        make_venv(uv)
    if not STAMP.exists() or STAMP.read_text() != key:
        STAMP.unlink(missing_ok=True)
        install_packages(uv)
        STAMP.write_text(key)
    fetch_jars = [str(VENV_PYTHON), "-m", "headgate.connectors.jars.fetch", "--java", java]
    sys.exit(subprocess.run(fetch_jars, stdin=subprocess.DEVNULL).returncode)


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


def venv_version() -> str:
    settings = VENV / "pyvenv.cfg"
    if not settings.exists():
        return "unknown"  # half removed
    version = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", settings.read_text(), re.MULTILINE)
    return version[1] if version else "unknown"


def make_venv(uv: str | None) -> None:
    say(f"Making .venv with Python {sys.version.split()[0]}")
    if uv:
        remove_venv()
        run([uv, "venv", "--quiet", "--python", sys.executable, str(VENV)])
        return
    if not importlib.util.find_spec("venv") or not importlib.util.find_spec("ensurepip"):
        stop("This Python has no venv module: install it (Debian and Ubuntu: apt install python3-venv), or install uv.")
    run([sys.executable, "-m", "venv", "--clear", str(VENV)])


def remove_venv() -> None:
    """uv refuses a folder that lost its pyvenv.cfg, even with --clear, which the older releases ignore."""
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)


def install_packages(uv: str | None) -> None:
    say(f"Installing packages with {'uv' if uv else 'pip, a few minutes the first time'}")
    if uv:
        install = [uv, "pip", "install", "--python", str(VENV_PYTHON)]
    else:
        if subprocess.run([VENV_PYTHON, "-m", "pip", "--version"], capture_output=True).returncode != 0:
            run([str(VENV_PYTHON), "-m", "ensurepip"])  # an environment that uv made has no pip
        install = [str(VENV_PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    if not sys.stdout.isatty():
        install.append("--quiet")
    run([*install, "-c", "constraints.txt", *BUILD_TOOLS])
    run([*install, "-c", "constraints.txt", "--no-build-isolation", "-e", f".[{EXTRAS}]"])


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
