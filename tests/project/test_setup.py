"""The way in: make, the set-up scripts and what is kept out of the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headgate.connectors.jars.fetch import LISTS
from headgate.spark.versions import spark_line

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ["help", "setup", "demo", "test", "test-spark", "test-deep", "simulate", "kills", "soak", "check", "bench"]
TARGETS += ["figures", "screenshots", "docs", "docs-serve", "release", "clean"]
STAMP = ROOT / ".venv" / ".headgate-packages"


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # The tests themselves often run under make, whose flags and level would leak into this one.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=env | environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("arguments", [[], ["help"]], ids=["default", "help"])
def test_help_lists_every_target(arguments: list[str]) -> None:
    listed = make(*arguments).stdout
    assert re.findall(r"^  make ([a-z-]+)", listed, re.MULTILINE) == TARGETS


def test_every_target_is_declared_phony() -> None:
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    assert declared[1].split() == TARGETS


def test_make_bench_runs_every_benchmark_and_the_page_tells_of_each() -> None:
    benchmarks = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "output_option" in path.read_text()}
    benchmarks.remove("report")
    dry = make("bench", "--dry-run").stdout
    listed = re.search(r"^for name in ([a-z_ ]+);", dry, re.MULTILINE)
    assert listed is not None, dry
    assert set(listed[1].split()) == benchmarks
    page = (ROOT / "benchmarks" / "README.md").read_text()
    assert set(re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)) == benchmarks


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """What make's own closing line leaves: one line, which is the sentence."""
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


def test_a_missing_python_is_said_in_one_sentence() -> None:
    assert "Python 3.11 or newer" in sentence(make("setup", "PYTHON=no-such-python"))


def test_an_old_python_is_said_in_one_sentence(tmp_path: Path) -> None:
    old = executable(tmp_path / "python3", 'case "$1" in -c) exit 1;; esac; echo "syntax error" >&2; exit 2')
    assert "Python 3.11 or newer" in sentence(make("setup", f"PYTHON={old}"))


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    """A PATH with the few commands that the Makefile's recipes call, and no java."""
    for name in ("sh", "make"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    return tmp_path


def test_a_missing_java_is_said_in_one_sentence(path_without_java: Path) -> None:
    result = make("setup", f"PYTHON={sys.executable}", PATH=str(path_without_java), JAVA_HOME="")
    assert "needs Java 17 or newer, and found none" in sentence(result)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("""echo 'openjdk version "11.0.2" 2019-01-15' >&2""", "is Java 11"),
        ("""echo 'java version "1.8.0_392"' >&2""", "is Java 8"),
        ("exit 1", "does not run"),
    ],
)
def test_an_unfit_java_is_said_in_one_sentence(path_without_java: Path, script: str, said: str) -> None:
    executable(path_without_java / "java", script)
    result = make("setup", f"PYTHON={sys.executable}", PATH=str(path_without_java), JAVA_HOME="")
    assert said in sentence(result)


@pytest.mark.skipif(
    not STAMP.exists() or Path(sys.prefix).resolve() != (ROOT / ".venv").resolve(),
    reason="this environment was not made by make setup",
)
def test_a_second_setup_does_nothing() -> None:
    before = STAMP.stat().st_mtime_ns
    seconds = []
    for _ in range(3):  # the fastest counts: other tests keep the machine busy
        start = time.monotonic()
        result = make("setup", f"PYTHON={getattr(sys, '_base_executable', sys.executable)}")
        seconds.append(time.monotonic() - start)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert min(seconds) < 10
    assert STAMP.stat().st_mtime_ns == before


# Takes what every release of uv takes, and no folder that is there. Its environment imports this checkout.
FAKE_UV = """
import json, subprocess, sys
from pathlib import Path
calls, checkout = Path({calls!r}), {checkout!r}
arguments = sys.argv[1:]
with calls.open("a") as log:
    print(json.dumps(arguments), file=log)
if arguments[0] == "venv":
    *options, folder = arguments[1:]
    if options[:-1] != ["--quiet", "--python"] or Path(folder).exists():
        sys.exit("uv venv: an option that not all know, or a folder that is there")
    subprocess.run([options[-1], "-m", "venv", "--without-pip", folder], check=True)
elif "-e" in arguments:
    python = arguments[arguments.index("--python") + 1]
    packages = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    where = subprocess.run(packages, check=True, capture_output=True, text=True).stdout.strip()
    Path(where, "checkout.pth").write_text(checkout)
"""


class WithUv:
    """The real bootstrap of a project of its own, and in place of uv a program that writes down what it is asked."""

    def __init__(self, home: Path) -> None:
        self.project = home / "project"
        self.venv = self.project / ".venv"
        self.calls = home / "calls"
        self.path = home / "bin"
        self.path.mkdir()
        (self.project / "scripts").mkdir(parents=True)
        for name in ("scripts/bootstrap.py", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.project / name)
        (home / "uv.py").write_text(FAKE_UV.format(calls=str(self.calls), checkout=str(ROOT)))
        executable(self.path / "uv", f'exec "{sys.executable}" "{home}/uv.py" "$@"')

    def setup(self, *lines: str) -> tuple[str, list[list[str]]]:
        """What it printed, and what uv was asked by it."""
        self.calls.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, self.project / "scripts" / "bootstrap.py", *lines],
            env=os.environ | {"PATH": f"{self.path}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        asked = self.calls.read_text().splitlines() if self.calls.exists() else []
        return done.stdout, [json.loads(line) for line in asked]


@pytest.mark.parametrize("before", ["nothing", "another python's", "half of one", "a link"])
def test_uv_makes_the_environment_and_installs_where_it_is_there(tmp_path: Path, before: str) -> None:
    uv = WithUv(tmp_path)
    old = tmp_path / "elsewhere" if before == "a link" else uv.venv
    if before != "nothing":
        (old / "bin").mkdir(parents=True)
        (old / "bin" / "python").symlink_to(sys.executable)
        (old / "left over").touch()
    if before in ("another python's", "a link"):
        (old / "pyvenv.cfg").write_text("version = 3.10.1\n")
    if before == "a link":
        uv.venv.symlink_to(old)
    said, asked = uv.setup()
    assert said.splitlines()[-1] == "Installing packages with uv"
    install = ["pip", "install", "--python", str(uv.venv / "bin" / "python"), "--quiet", "-c", "constraints.txt"]
    assert asked == [
        ["venv", "--quiet", "--python", sys.executable, str(uv.venv)],
        [*install, "hatchling", "editables", "setuptools", "wheel"],
        [*install, "--no-build-isolation", "-e", ".[kafka,spark,s3,delta,ui,dev,docs]"],
    ]
    assert not (uv.venv / "left over").exists()
    assert old == uv.venv or (old / "left over").exists(), "what a link points to is somebody else's"
    assert uv.setup() == ("", [])  # all there, jars too: nothing to do or to say


@pytest.mark.parametrize("setting", ["PIP_INDEX_URL", "PIP_NO_INDEX"])
def test_where_pip_is_told_of_another_index_it_installs_itself(setting: str) -> None:
    """uv does not read pip's settings. Without such, every clean checkout is set up by a uv that was fetched."""
    code = "import bootstrap; print(bootstrap.fetched_uv(bootstrap.VENV / 'bin' / 'python'))"
    told = os.environ | {
        "PYTHONPATH": str(ROOT / "scripts"),
        setting: "1" if setting == "PIP_NO_INDEX" else "file:///nowhere",
    }
    done = subprocess.run([sys.executable, "-c", code], env=told, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "None"


def test_a_line_of_spark_has_its_own_packages_before_those_of_the_main_environment(tmp_path: Path) -> None:
    uv = WithUv(tmp_path)
    shutil.copy(ROOT / "constraints-spark-3.5.txt", uv.project)
    uv.setup()
    said, asked = uv.setup("3.5")
    own = uv.project / ".venv-spark-3.5"
    assert "pyspark==3.5.3, py4j==" in said
    install = [
        "pip",
        "install",
        "--python",
        str(own / "bin" / "python"),
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    assert asked == [
        ["venv", "--quiet", "--python", sys.executable, str(own)],
        [*install, "-r", "constraints-spark-3.5.txt"],
    ]
    ask = [str(own / "bin" / "python"), "-I", "-c", "import headgate, sys; print(headgate.__file__, *sys.path)"]
    found, *path = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()
    assert Path(found).is_relative_to(ROOT), "what .venv has is there too"
    assert next(one for one in path if "site-packages" in one).startswith(str(own)), "behind the line's own packages"
    assert uv.setup("3.5") == ("", [])


def test_environments_are_kept_out_of_the_repository() -> None:
    kept = ["git", "ls-files", "--", ".venv", ".venv-spark-*"]
    assert subprocess.run(kept, cwd=ROOT, check=True, capture_output=True, text=True).stdout == ""
    for place in (".venv/bin/python", ".venv-spark-4.0/bin/python"):
        assert subprocess.run(["git", "check-ignore", "-q", place], cwd=ROOT).returncode == 0, place


def test_results_of_a_line_come_from_that_line_alone() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests/spark"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "HEADGATE_LINE": "3.4"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert "HEADGATE_LINE is 3.4, and this Python has Spark" in done.stderr


def test_an_unknown_line_of_spark_is_said_in_one_sentence() -> None:
    done = subprocess.run([sys.executable, "scripts/bootstrap.py", "3.4"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "There is no environment for Spark 3.4: the lines beside that of .venv are 3.5, 4.0, 4.1."
    ]


FAKE_IVY = """
import sys, zipfile
pattern = sys.argv[sys.argv.index("-retrieve") + 1]
for name in {names!r}:
    with zipfile.ZipFile(pattern.replace("[artifact]-[revision].[ext]", name), "w") as jar:
        jar.writestr("a", "b" * 1000)
    print("[SUCCESSFUL ]")
"""


class Jars:
    """The real fetching with a list of two jars, and in place of java a program that writes them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.cache = home / "cache"
        self.folder = self.cache / "jars" / "small"
        (home / "jars").mkdir()
        (home / "jars" / "small.xml").write_text(
            '<ivy-module><dependencies><dependency name="one" rev="1"/><dependency name="two" rev="2"/>'
            "</dependencies></ivy-module>"
        )

    def fetch(self, *names: str, lists: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run it for these lists, by default all, while Ivy can get these jars."""
        (self.home / "ivy.py").write_text(FAKE_IVY.format(names=names))
        java = executable(self.home / "java", f'exec "{sys.executable}" "{self.home}/ivy.py" "$@"')
        folder = self.home / "jars"
        return subprocess.run(
            [sys.executable, "-m", "headgate.connectors.jars.fetch", "--java", java, "--folder", folder, *lists],
            env=os.environ | {"HEADGATE_CACHE": str(self.cache)},
            capture_output=True,
            text=True,
        )

    def names(self) -> list[str]:
        return sorted(jar.name for jar in self.folder.glob("*.jar"))


BOTH = ("one-1.jar", "two-2.jar")


@pytest.fixture
def jars(tmp_path: Path) -> Jars:
    jars = Jars(tmp_path)
    assert jars.fetch(*BOTH).returncode == 0
    assert jars.names() == list(BOTH)
    return jars


def test_complete_jars_are_left_alone_without_a_word(jars: Jars) -> None:
    result = jars.fetch()  # Ivy could get nothing, and is not asked
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_missing_jar_is_fetched_again(jars: Jars) -> None:
    (jars.folder / "two-2.jar").unlink()
    assert jars.fetch(*BOTH).returncode == 0
    assert jars.names() == list(BOTH)


def test_a_cut_off_jar_is_fetched_again(jars: Jars) -> None:
    jar = jars.folder / "two-2.jar"
    whole = jar.stat().st_size
    os.truncate(jar, 100)
    assert jars.fetch(*BOTH).returncode == 0
    assert jar.stat().st_size == whole


def test_jars_without_a_receipt_are_not_taken_for_complete(jars: Jars) -> None:
    (jars.folder / ".receipt.json").unlink()
    assert "Fetching 2 jars" in jars.fetch(*BOTH).stdout


def test_a_jar_that_left_the_list_leaves_the_cache(jars: Jars) -> None:
    listed = jars.home / "jars" / "small.xml"
    listed.write_text(listed.read_text().replace('<dependency name="two" rev="2"/>', ""))
    assert jars.fetch("one-1.jar").returncode == 0
    assert jars.names() == ["one-1.jar"]


def test_an_optional_list_comes_only_where_it_is_named(jars: Jars) -> None:
    optional = jars.home / "jars" / "optional"
    optional.mkdir()
    shutil.copy(jars.home / "jars" / "small.xml", optional / "more.xml")
    assert jars.fetch().returncode == 0
    assert not (jars.cache / "jars" / "more").exists()
    assert jars.fetch(*BOTH, lists=("more",)).returncode == 0
    assert sorted(jar.name for jar in (jars.cache / "jars" / "more").glob("*.jar")) == list(BOTH)
    unknown = jars.fetch(lists=("less",))
    assert (unknown.returncode, unknown.stderr) == (
        1,
        "Jar list 'less' not found. Next: the lists are more, small\n",
    )


def test_an_optional_list_of_the_installed_spark_needs_no_number(jars: Jars) -> None:
    optional = jars.home / "jars" / "optional"
    optional.mkdir()
    for line in ("1.0", spark_line()):
        shutil.copy(jars.home / "jars" / "small.xml", optional / f"more-{line}.xml")
    assert jars.fetch(*BOTH, lists=("more",)).returncode == 0
    there = {path.name for path in (jars.cache / "jars").iterdir()}
    assert there == {"small", f"more-{spark_line()}"}


def test_of_sparks_lines_the_installed_one_comes_and_others_where_they_are_named(jars: Jars) -> None:
    lines = jars.home / "jars" / "lines"
    lines.mkdir()
    small = jars.home / "jars" / "small.xml"
    shutil.copy(small, lines / "spark-1.0.xml")
    refused = jars.fetch(*BOTH)
    assert (refused.returncode, "headgate has no jar list for Spark" in refused.stderr) == (1, True)
    shutil.copy(small, lines / f"spark-{spark_line()}.xml")
    assert jars.fetch(*BOTH, lists=("spark",)).returncode == 0
    there = {path.name for path in (jars.cache / "jars").iterdir()}
    assert there == {"small", f"spark-{spark_line()}"}
    assert jars.fetch(*BOTH, lists=("spark-1.0",)).returncode == 0
    assert (jars.cache / "jars" / "spark-1.0" / "one-1.jar").exists()


def test_jars_that_cannot_be_had_are_named_and_what_is_there_stays(jars: Jars) -> None:
    (jars.folder / ".receipt.json").unlink()
    result = jars.fetch("one-1.jar")
    assert result.returncode == 1
    assert "Fetching 1 of 2 jars failed (two-2.jar)" in result.stderr
    assert jars.names() == list(BOTH)


def test_the_checked_in_lists_name_each_jar_once() -> None:
    for jar_list in LISTS.rglob("*.xml"):
        names = re.findall(r'name="([^"]+)" rev="[^"]+" transitive="false"', jar_list.read_text())
        assert names
        assert len(names) == len(set(names)) == jar_list.read_text().count("<dependency ")


def test_constraints_are_exact_versions_by_name() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin)] == []


def tracked_texts() -> list[tuple[Path, str]]:
    """Every file that is, or would be, in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    texts = []
    for name in filter(None, listed.stdout.split("\0")):
        try:
            texts.append((Path(name), (ROOT / name).read_text()))
        except (UnicodeDecodeError, FileNotFoundError):
            continue
    return texts


# Put together here, so that this file does not contain what it looks for.
MACHINE_PATHS = ["/" + folder + "/" for folder in ("work", "root")]
REGISTRY_HOSTS = ["pypi" + ".org", "pythonhosted" + ".org", "maven" + ".org", "maven" + ".apache.org"]


@pytest.mark.parametrize("unwanted", MACHINE_PATHS + REGISTRY_HOSTS)
def test_no_file_names_a_machine_path_or_a_registry(unwanted: str) -> None:
    # A path only counts where it starts one: "a/work/b" is somebody's relative path.
    pattern = re.compile(rf"(?<![\w./-]){re.escape(unwanted)}" if unwanted.startswith("/") else re.escape(unwanted))
    assert [str(path) for path, text in tracked_texts() if pattern.search(text)] == []
