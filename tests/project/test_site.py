"""The documentation builds strictly, loads nothing from elsewhere, and shows only figures that result files hold."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures
from headgate.cli import main as command
from tests.support.pages import ROOT

RESULT: dict[str, Any] = {
    "command": "python -m benchmarks.stream",
    "date": "2026-11-18",
    "machine": {"cores": 2, "memory GiB": 23},
    "load before": 0.1,
    "tables": [
        {
            "title": "rows",
            "rows": [
                {"sink": "raw → noop", "rows/s": 200_000.0},
                {"sink": "headgate WAL-only, direct", "rows/s": 100_000.0},
                {"sink": "Delta <append>", "rows/s": 50_000.0},
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href|srcset)=\"?(https?:[^\"\s>]+)")
    for page in site.rglob("*.html"):
        loads = [url for url in fetched.findall(page.read_text()) if 'rel="canonical"' not in url]
        assert loads == [], page


def test_the_reference_has_every_command_option_and_error(site: Path) -> None:
    shown = {name: (site / "reference" / f"{name}.html").read_text() for name in ("cli", "options", "errors", "api")}
    assert [name for name in command.commands if f"headgate {name}" not in shown["cli"]] == []
    assert "checkpointInterval" in shown["options"]
    assert "OutcomeUnknown" in shown["errors"]
    assert "create_table" in shown["api"]


def test_the_page_of_decoding_says_what_the_code_does() -> None:
    rendered = runpy.run_path(str(ROOT / "scripts" / "site.py"))["decoding"]()
    assert (ROOT / "docs" / "reference" / "decoding.md").read_text() == rendered, "run `python scripts/site.py`"


def test_pages_show_what_the_result_files_hold() -> None:
    stale = [path for path, text in figures.rendered().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run `make figures`"


def test_figures_stand_nowhere_else() -> None:
    made = {ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "evidence.md"}
    found = {page.relative_to(ROOT): figures.loose(page.read_text()) for page in figures.pages() if page not in made}
    assert {page: loose for page, loose in found.items() if loose} == {}, "put them between figure markers"


@pytest.mark.parametrize("text", ["it takes 12 ms", "at 251,000 rows/s", "3.6 × Delta", "at 40 MB/s"])
def test_a_loose_figure_is_seen(text: str) -> None:
    assert figures.loose(text)
    assert not figures.loose(f"<!-- figure:throughput -->{text}<!-- /figure -->")


def test_a_figure_comes_from_its_result(tmp_path: Path) -> None:
    (tmp_path / "stream.json").write_text(json.dumps(RESULT))
    found = figures.results(tmp_path)
    page = "<!-- figure:direct-over-delta -->old<!-- /figure -->, <!-- figure:direct-rate -->?<!-- /figure -->"
    assert re.sub(r"<!--.*?-->", "", figures.filled(page, found)) == "2.0 ×, 100,000 rows/s"
    with pytest.raises(KeyError):
        figures.filled("<!-- figure:no-such -->x<!-- /figure -->", found)
    assert "| headgate WAL-only, direct | 100,000 |" in figures.benchmarks_page(found)
    (picture, *_) = figures.charts(found).values()
    assert "Delta &lt;append&gt;" in picture
