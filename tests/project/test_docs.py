"""Every code block of README and docs runs, every link leads somewhere, every error is in the runbook."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.cli.errors import EXITS, INTERRUPTED
from headgate.errors import HeadgateError
from tests.project.doc_blocks import NEEDS, TAGS, PageRun, check_run_by
from tests.project.doc_tables import SCHEMA, fill_topic, make_table
from tests.support.pages import ROOT, Block, blocks_of, needs_of, pages
from tests.support.services import S3_SECRETS, moto_server, passing_bucket

FIRST_READ = ("README.md", "docs/start/topic.md", "docs/guides/search.md")
"""Of the pages on Spark those that run in `make test`; what the others show is tested there in other ways."""
ON_SPARK = [page for page in pages() if needs_of(page) & {"spark", "kafka"}]
RUNBOOK = ROOT / "docs" / "operations" / "runbook.md"


@pytest.mark.parametrize("page", pages())
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks_of(page):
        assert block.tag in TAGS, f"{block.place}: a block is one of {TAGS}, not {block.tag!r}"
        if "run by" in block.told:
            check_run_by(block)
    assert needs_of(page) <= set(NEEDS)


@pytest.mark.parametrize("page", [page for page in pages() if page not in ON_SPARK])
def test_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with _bucket(page, monkeypatch):
        _run(page, tmp_path)


def test_who_runs_a_block_takes_it_from_the_page() -> None:
    """A file that is not there, that only speaks of the page, or that is no test, runs nothing."""
    claims = {
        "tests/project/test_nowhere.py": "there is no",
        "tests/project/test_setup.py": "does not read its blocks",
        "tests/project/doc_blocks.py": "no file of tests",
    }
    for name, why in claims.items():
        with pytest.raises(AssertionError, match=why):
            check_run_by(Block("docs/guides/delta.md", 1, "sh", "", {"run by": name}))


@pytest.fixture(scope="module")
def filled_topic(kafka_servers: str) -> str:
    """The broker, with the topic that pages read."""
    fill_topic(kafka_servers)
    return kafka_servers


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize(
    "page", [pytest.param(one, marks=[] if one in FIRST_READ else pytest.mark.deep) for one in ON_SPARK]
)
def test_a_page_that_needs_spark_runs(
    spark: Any, filled_topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with _bucket(page, monkeypatch):
        _run(page, tmp_path, filled_topic, spark=spark)


def _run(page: str, folder: Path, servers: str | None = None, **given: Any) -> None:
    text = (ROOT / page).read_text()
    namespace = dict(given)
    if "table" in needs_of(page):
        made = [make_table(str(folder / place)) for place in ("lake/orders", "orders") if _names(text, place)]
        namespace |= {"table": made[0], "uri": made[0].uri, "schema": SCHEMA}
    run = PageRun(folder, namespace, servers)
    try:
        for block in blocks_of(page):
            run.run(block)
    finally:
        run.end()


def _names(text: str, place: str) -> bool:
    return place in text if "/" in place else re.search(rf"(?<![\w])\./{place}\b", text) is not None


@contextmanager
def _bucket(page: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """moto, with a bucket `lake`, and credentials in the environment, where the page needs it."""
    if "s3" not in needs_of(page):
        yield
        return
    with moto_server() as endpoint, passing_bucket(endpoint, "lake"):
        settings = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), S3_SECRETS, strict=True))
        for name, value in {**settings, "AWS_ENDPOINT": endpoint, "AWS_ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.parametrize("page", pages())
def test_links_inside_the_repository_lead_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", _prose(page)):
        if "://" in target or target.endswith("changelog.md"):  # made by scripts/site.py
            continue
        there = (ROOT / page).parent.joinpath(target) if target else ROOT / page
        assert there.exists(), f"{page} links to {target}"
        if anchor and not target.endswith(".svg"):
            headings = re.findall(r"^#+ (.*)$", _prose(str(there.resolve().relative_to(ROOT))), re.MULTILINE)
            assert anchor in map(_slug, headings), f"{page} links to {target}#{anchor}"


def _prose(page: str) -> str:
    return re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_page_says_first_what_its_reader_can_do_after_it() -> None:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        title, empty, lead = page.read_text().splitlines()[:3]
        assert title.startswith("# "), page
        assert not empty, page
        assert lead.startswith("After this page "), page


def test_every_error_and_exit_code_is_in_the_runbook() -> None:
    headings = re.findall(r"^#+ (.*)$", RUNBOOK.read_text(), re.MULTILINE)
    words = {word.strip("`,:") for heading in headings for word in heading.split()}
    for module in pkgutil.walk_packages(headgate.__path__, "headgate."):
        if "class " in (source := _source(module.name)) and "Error" in source:
            importlib.import_module(module.name)
    classes = {kind.__name__ for kind in _all(HeadgateError) if not kind.__name__.startswith("_")}
    assert classes - words == set(), "each error class has a heading in docs/operations/runbook.md"
    codes = {f"Exit {code}" for code in (*(row.code for row in EXITS), INTERRUPTED)}
    assert {code for code in codes if not any(heading.startswith(f"{code}:") for heading in headings)} == set()


def _source(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    return next(file for file in (path / "__init__.py", path.with_suffix(".py")) if file.exists()).read_text()


def _all(kind: type[HeadgateError]) -> set[type[HeadgateError]]:
    ours = [child for child in kind.__subclasses__() if child.__module__.startswith("headgate.")]
    return {kind, *(found for child in ours for found in _all(child))}


def test_the_map_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "internals" / "architecture.md").read_text()
    named = re.findall(r"`((?:headgate/)?[a-z_]+/[a-z_/]*(?:\.py)?)`", text)
    assert len(named) > 40
    package = ROOT / "headgate"
    missing = [name for name in named if not (package / name.removeprefix("headgate/")).exists()]
    inner = {path.name for path in package.rglob("*") if path.is_dir()}
    assert not [name for name in missing if name.rstrip("/") not in inner]
