"""`make figures`: render docs and charts from result files, so that no figure is written by hand.

- `docs/benchmarks.md` shows every file of `benchmarks/results/`; `docs/evidence.md` every file of `tests/results/`.
- `docs/images/*.svg` are the charts, light and dark.
- In README and docs the text between `<!-- figure:NAME -->` and `<!-- /figure -->` is replaced by that figure.

`--check` changes nothing and exits 1 where something is not what the result files say. A test calls it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import click

from benchmarks.report import RESULTS, cell

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "tests" / "results"
IMAGES = ROOT / "docs" / "images"

MARKED = re.compile(r"(<!-- figure:([a-z0-9-]+) -->)(.*?)(<!-- /figure -->)", re.DOTALL)
UNIT = re.compile(r"(?<![\w.])\d[\d,.]*\s*(?:rows/s|MB/s|ms\b|×)")
"""What must stand between markers: figures that were measured, and will be others on another day."""

NOT_YET = "not measured yet"
COLOURS = {
    "light": {"text": "#1f2933", "muted": "#6b7280", "ours": "#0f766e", "peer": "#9ca3af"},
    "dark": {"text": "#e5e7eb", "muted": "#9ca3af", "ours": "#2dd4bf", "peer": "#6b7280"},
}

Result = Mapping[str, Any]


def results(folder: Path = RESULTS) -> dict[str, Result]:
    """Every result file by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


# -- figures inside pages ------------------------------------------------------------


def throughput(found: Mapping[str, Result]) -> str:
    """Rows a second of the stream benchmark at its largest batches, as the chart."""
    if not _rates(found):
        return NOT_YET
    said = _where(found["stream"])
    return (
        '<picture><source media="(prefers-color-scheme: dark)" srcset="docs/images/throughput-dark.svg">'
        f'<img src="docs/images/throughput-light.svg" alt="Rows per second by sink"></picture>\n\n{said}'
    )


def stream_ratio(over: str) -> Callable[[Mapping[str, Result]], str]:
    """Direct streaming over another sink, in one run."""

    def figure(found: Mapping[str, Result]) -> str:
        rates = dict(_rates(found))
        ours = next((rate for name, rate in rates.items() if "direct" in name and "WAL" in name), None)
        other = next((rate for name, rate in rates.items() if over in name), None)
        return NOT_YET if ours is None or other is None else f"{ours / other:.1f} ×"

    return figure


def stream_rate(found: Mapping[str, Result]) -> str:
    """Rows a second of direct streaming."""
    rates = [rate for name, rate in _rates(found) if "direct" in name and "WAL" in name]
    return f"{round(rates[0], -3):,.0f} rows/s" if rates else NOT_YET


def spark_lines(found: Mapping[str, Result]) -> str:
    """What ran on which line of Spark, and how it ended."""
    rows: list[dict[str, Any]] = []
    for name, result in found.items():
        if not name.startswith("spark-"):
            continue
        ended = next(table["rows"] for table in result["tables"] if table["title"] == "How they ended")
        row: dict[str, Any] = {"Spark": result["machine"]["pyspark"]}
        for room in sorted({test["tests"].split("/")[1] for test in ended}):
            there = [test for test in ended if test["tests"].split("/")[1] == room]
            passed, failed, skipped = (sum(test[how] for test in there) for how in ("passed", "failed", "skipped"))
            row[f"tests/{room}"] = f"{passed} passed, {failed} failed, {skipped} skipped"
        rows.append({**row, "last run": max(test["date"] for test in ended)})
    return "\n".join(_markdown(rows)) if rows else NOT_YET


def console_ratio(found: Mapping[str, Result]) -> str:
    """Throughput with the console and a page open, over that without: the least of all ways of streaming."""
    if "console" not in found:
        return NOT_YET
    rows = next(table["rows"] for table in found["console"]["tables"] if table["title"].startswith("Rows per second"))
    return f"{min(float(row['seen']) for row in rows if 'page open' in row['what']):.2f} ×"


FIGURES: dict[str, Callable[[Mapping[str, Result]], str]] = {
    "spark-lines": spark_lines,
    "console-ratio": console_ratio,
    "throughput": throughput,
    "direct-rate": stream_rate,
    "direct-over-delta": stream_ratio("Delta"),
    "direct-over-raw": stream_ratio("raw"),
    "direct-over-lance": stream_ratio("Lance"),
}
"""What a marker may name."""


def _rates(found: Mapping[str, Result]) -> list[tuple[str, float]]:
    if "stream" not in found:
        return []
    rows = found["stream"]["tables"][0]["rows"]
    return [(str(row["sink"]), float(row["rows/s"])) for row in rows if "rows/s" in row]


def _where(result: Result) -> str:
    machine = result["machine"]
    return f"{machine['cores']} cores, {machine['memory GiB']} GiB, {result['date']}: `{result['command']}`."


# -- pages ---------------------------------------------------------------------------


def benchmarks_page(found: Mapping[str, Result]) -> str:
    """Every result: what, where, when, how."""
    head = (
        "# Benchmarks",
        "After this page you know what was measured, on which machine, and by which command. "
        "Compare ratios of one run; rates belong to one machine. `make figures` writes this page from "
        "`benchmarks/results/`.",
    )
    return _page(head, found, "Nothing has been measured yet.")


def evidence_page(found: Mapping[str, Result]) -> str:
    """What long tests and soaks showed last."""
    head = (
        "# Evidence",
        "After this page you know which long tests ran last, when, and how they ended. `make test`, which every change "
        "passes, is not listed. `make test-deep`, `make simulate` and `make soak` write `tests/results/`, from which "
        "`make figures` writes this page; [Faults](internals/faults.md) says what these tests break on purpose.",
    )
    return _page(head, found, "No long test has written a result file yet.")


def _page(head: Sequence[str], found: Mapping[str, Result], empty: str) -> str:
    lines = [line for text in head for line in (text, "")]
    for name, result in found.items():
        machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
        said = f"`{result['command']}`, {result['date']}, load before {result['load before']}."
        lines += [f"## {name}", "", said, ""]
        for table in result["tables"]:
            lines += [f"**{table['title']}**", "", *_markdown(table["rows"]), ""]
        lines += [f"Machine: {machine}.", ""]
    if not found:
        lines += [empty, ""]
    return "\n".join(lines)


def _markdown(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(cell(row.get(column)).replace("|", "\\|") for column in columns) + " |"


# -- charts --------------------------------------------------------------------------


def bars(title: str, values: Sequence[tuple[str, float]], shade: str) -> str:
    """A bar for each value, longest first; ours in colour."""
    colours, width, row, left = COLOURS[shade], 720, 30, 210
    ranked = sorted(values, key=lambda one: -one[1])
    longest = max(value for _, value in ranked)
    height = 44 + row * len(ranked)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="14">',
        f'<text x="8" y="22" font-size="15" font-weight="600" fill="{colours["text"]}">{escape(title)}</text>',
    ]
    for number, (name, value) in enumerate(ranked):
        top = 36 + row * number
        long = max(2.0, (width - left - 90) * value / longest)
        colour = colours["ours" if name.startswith("headgate") else "peer"]
        parts += [
            f'<text x="{left - 10}" y="{top + 17}" text-anchor="end" fill="{colours["text"]}">{escape(name)}</text>',
            f'<rect x="{left}" y="{top + 3}" width="{long:.1f}" height="{row - 10}" rx="3" fill="{colour}"/>',
            f'<text x="{left + long + 8:.1f}" y="{top + 17}" fill="{colours["muted"]}">{value:,.0f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def charts(found: Mapping[str, Result]) -> dict[Path, str]:
    """Every picture by its file."""
    made: dict[Path, str] = {}
    if rates := _rates(found):
        for shade in COLOURS:
            title = f"Rows per second, {found['stream']['machine']['cores']} cores"
            made[IMAGES / f"throughput-{shade}.svg"] = bars(title, rates, shade)
    return made


# -- writing -------------------------------------------------------------------------


def pages() -> list[Path]:
    """Where markers may stand."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, found: Mapping[str, Result]) -> str:
    """The page with every marker's text as the result files say. Raises KeyError for a name that is not a figure."""

    def fill(match: re.Match[str]) -> str:
        figure = FIGURES[match[2]](found)
        return f"{match[1]}\n{figure}\n{match[4]}" if "\n" in match[3] else f"{match[1]}{figure}{match[4]}"

    return MARKED.sub(fill, text)


def loose(text: str) -> list[str]:
    """Figures outside of markers and code."""
    prose = re.sub(r"```.*?```|`[^`]*`", "", MARKED.sub("", text), flags=re.DOTALL)
    return UNIT.findall(prose)


def rendered() -> dict[Path, str]:
    """Every file that figures decide, with the text it should have."""
    found = results()
    made = {
        ROOT / "docs" / "benchmarks.md": benchmarks_page(found),
        ROOT / "docs" / "evidence.md": evidence_page(results(EVIDENCE)),
        **charts(found),
    }
    both = {**found, **results(EVIDENCE)}
    made |= {path: filled(path.read_text(), both) for path in pages() if path not in made}
    return made


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 where a page is not what the result files say.")
def main(check: bool) -> None:
    """Render docs and charts from the result files."""
    stale = [path for path, text in rendered().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        click.echo(path.relative_to(ROOT))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rendered()[path])
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
