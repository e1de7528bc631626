"""The Dockerfile: what it copies is there, and every step of it that needs no root runs in a folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.project.composed import ROOT, Machine
from tests.project.test_compose import run_the_services

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDS_ROOT = ("apt-get", "useradd")
"""Commands of the image's own Debian: looked at, not run."""


@dataclass(frozen=True)
class Step:
    """One instruction."""

    kind: str
    text: str

    @property
    def words(self) -> list[str]:
        """What it says, word by word."""
        return self.text.split()


def steps() -> list[Step]:
    """The file, without comments, lines that go on put together."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [Step(kind, text.strip()) for kind, _, text in (line.partition(" ") for line in whole.splitlines()) if kind]


def let_through() -> list[str]:
    """What .dockerignore lets into the build; everything else stays out."""
    first, *rest = (ROOT / ".dockerignore").read_text().splitlines()
    assert first == "*"
    return [line.removeprefix("!") for line in rest if line.startswith("!")]


def test_what_it_names_is_there() -> None:
    base, *_ = [step.text for step in steps() if step.kind == "FROM"]
    python = re.fullmatch(r"python:(3\.\d+)-slim-bookworm", base)
    assert python is not None, "bookworm is the last Debian with Java 17"
    assert PROJECT["requires-python"] == f">={python[1]}"
    copied = [source for step in steps() if step.kind == "COPY" for source in step.words[:-1]]
    assert sorted(copied) == sorted(let_through())
    assert all((ROOT / source).exists() for source in copied)
    told = " ".join(step.text for step in steps())
    java = re.search(r"openjdk-(\d+)-jre", told)
    oldest = re.search(r"OLDEST_JAVA = (\d+)", (ROOT / "scripts" / "bootstrap.py").read_text())
    assert java is not None
    assert oldest is not None
    assert java[1] == oldest[1]
    extras = re.search(r"\.\[([a-z0-9,]+)\]", told)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    assert [step.text for step in steps() if step.kind == "ENTRYPOINT"] == ['["headgate"]']
    assert "headgate" in PROJECT["scripts"]
    assert steps()[-3].kind == "USER", "it does not run as root"


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.s3
def test_the_steps_run_and_what_they_install_runs_the_services(tmp_path: Path, record_property: Any) -> None:
    image = Image(tmp_path / "image")
    ran = [image.do(step) for step in steps()]
    assert ran.count(True) == 3, "two installs and the jars"
    headgate = shutil.which("headgate", path=image.environment["PATH"])
    assert headgate is not None
    shown = subprocess.run([headgate, "--version"], env=image.environment, capture_output=True, text=True)
    assert PROJECT["version"] in shown.stdout
    machine = Machine(tmp_path / "services", [headgate])
    machine.folder.mkdir()
    machine.extra = {name: image.environment[name] for name in ("HEADGATE_CACHE", "PATH", "PYTHONUNBUFFERED")}
    store = run_the_services(machine, starts=2)
    record_property("told", f"Dockerfile: its steps ran in a folder, and the services in what they made, S3 by {store}")


class Image:
    """A folder that becomes what the image would be, with a Python environment in place of the image's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.arguments: dict[str, str] = {}
        subprocess.run([sys.executable, "-m", "venv", str(root / "python")], check=True)
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment["PATH"] = f"{root / 'python' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment["VIRTUAL_ENV"] = str(root / "python")
        self.place = root

    def do(self, step: Step) -> bool:
        """One instruction. Whether a command was run."""
        if step.kind == "ENV":
            for word in step.words:
                name, _, value = word.partition("=")
                self.environment[name] = str(self._inside(value)) if value.startswith("/") else value
            # The image keeps no cache; a machine that has packages in its own is not asked to fetch them again.
            self.environment.pop("PIP_NO_CACHE_DIR", None)
        elif step.kind == "ARG":
            name, _, value = step.text.partition("=")
            self.arguments[name] = value
        elif step.kind == "WORKDIR":
            self.place = self._inside(step.text)
            self.place.mkdir(parents=True, exist_ok=True)
        elif step.kind == "COPY":
            *sources, target = step.words
            for source in sources:
                self._copy(ROOT / source, self.place / target)
        elif step.kind == "RUN" and step.words[0] not in NEEDS_ROOT:
            # /bin/sh, as Docker does it.
            command = " ".join(step.words)
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                cwd=self.place,
                env=self.environment | self.arguments,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
            return True
        return False

    def _inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _copy(self, source: Path, folder: Path) -> None:
        """As Docker does: of a folder its content."""
        if source.is_dir():
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder)
