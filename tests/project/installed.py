"""The wheel of this checkout, and a clean environment that has it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def built_wheel(folder: Path) -> Path:
    """The wheel, made by the build backend itself: nothing is fetched."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("headgate-*.whl")
    return wheel


def clean_environment(folder: Path, wheel: Path, extras: str) -> Path:
    """The folder of programs of an environment with the wheel and those extras, by pip and constraints.txt alone.

    An environment that is there gets what it lacks.
    """
    if not folder.exists():
        venv.create(folder, with_pip=True)
    programs = folder / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    limits = ["-c", str(ROOT / "constraints.txt")]
    # pyspark comes as source only, and is built with what constraints.txt says.
    named = f"headgate[{extras}]" if extras else "headgate"
    for wanted in (["setuptools", "wheel"], ["--no-build-isolation", f"{named} @ {wheel.as_uri()}"]):
        done = subprocess.run(
            [*pip, *limits, *wanted], cwd=folder, env=outside(), capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return programs


def outside(programs: Path | None = None, **more: str) -> dict[str, str]:
    """An environment of processes that know nothing of the checkout."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }
    path = kept.get("PATH", "")
    return {**kept, "PATH": f"{programs}{os.pathsep}{path}" if programs else path, **more}
