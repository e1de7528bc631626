"""`make release`: wheel, source archive and documentation in build/release, each checked as a user would meet it.

1. build: by the build backend itself, nothing is fetched.  2. the wheel owns one name and has the version of the
package.  3. the documentation builds strictly.  4. the wheel is installed into a clean environment, where the command
answers and a table is written, read and checked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "release"
TRIED = """
import pyarrow as pa, headgate
table = headgate.create_table("t", pa.schema([("id", pa.int64())]))
with table.writer("single") as writer:
    writer.put(pa.table({"id": [1, 2]}))
assert table.scan().read_all().num_rows == 2
"""


def main() -> None:
    """Build and check; exits 1 with what failed."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(OUT)])
    (wheel,), (archive,) = OUT.glob("headgate-*.whl"), OUT.glob("headgate-*.tar.gz")
    with zipfile.ZipFile(wheel) as files:
        owned = {name.partition("/")[0] for name in files.namelist()}
    version = wheel.name.split("-")[1]
    if owned != {"headgate", f"headgate-{version}.dist-info"}:
        sys.exit(f"The wheel owns more than its own name: {sorted(owned)}.")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(OUT / "docs")], environment)
    with tempfile.TemporaryDirectory(prefix="headgate-release-") as place:
        tried(wheel, version, Path(place))
    for path in (wheel, archive, OUT / "docs" / "index.html"):
        print(path.relative_to(ROOT))


def tried(wheel: Path, version: str, place: Path) -> None:
    """Install it where nothing of this checkout is, and use it."""
    venv.create(place / "env", with_pip=True)
    python = place / "env" / "bin" / "python"
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*install, "-c", str(ROOT / "constraints.txt"), str(wheel)], clean, place)
    answer = subprocess.run(
        [place / "env" / "bin" / "headgate", "--version"], capture_output=True, text=True, env=clean
    )
    if version not in answer.stdout:
        sys.exit(f"The installed command says {answer.stdout!r} {answer.stderr!r}, not {version}.")
    run([str(python), "-c", TRIED], clean, place)
    run([str(place / "env" / "bin" / "headgate"), "fsck", "t"], clean, place, quiet=True)


def run(command: list[str], environment: dict[str, str] | None = None, place: Path = ROOT, quiet: bool = False) -> None:
    """A step that must exit 0."""
    output = subprocess.DEVNULL if quiet else None
    if code := subprocess.run(command, cwd=place, env=environment, stdout=output).returncode:
        sys.exit(f"{' '.join(command[:4])} … exits {code}.")


if __name__ == "__main__":
    main()
