"""What MkDocs builds beside the pages in `docs/`: the command line, options, errors and the changelog, from the code.

A hook of mkdocs.yml. Pages link to files of the repository as GitHub shows them; on the site such a link is text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages = {
        "reference/cli.md": command_line(),
        "reference/options.md": options(),
        "reference/errors.md": errors(),
        "changelog.md": "# Changelog\n" + (ROOT / "CHANGELOG.md").read_text().partition("\n")[2],
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links that leave `docs/` become the name of the file."""
    written = ROOT / ("CHANGELOG.md" if page.file.src_uri == "changelog.md" else f"docs/{page.file.src_uri}")

    def text_only(match: re.Match[str]) -> str:
        target = (written.parent / match[2]).resolve()
        if "://" in match[2] or (ROOT / "docs" in target.parents and written.name != "CHANGELOG.md"):
            return match[0]
        return f"{match[1]} (`{target.relative_to(ROOT)}`)"

    return LINK.sub(text_only, markdown)


def command_line() -> str:
    """Every command with its help."""
    from headgate.cli import main

    context = click.Context(main, info_name="headgate")
    lines = [
        "# Command line",
        "",
        "After this page you know every command and option. `headgate COMMAND --help` says the same in a terminal. "
        "Every command that deletes or fences shows what it would do, and does it with `--apply`.",
        "",
        'Shell completion: `eval "$(_HEADGATE_COMPLETE=bash_source headgate)"` in `~/.bashrc`; for zsh `zsh_source`, '
        "for fish `_HEADGATE_COMPLETE=fish_source headgate | source`.",
        "",
        *_command(main, context, 2),
    ]
    return "\n".join(lines)


def _command(command: click.Command, context: click.Context, level: int) -> list[str]:
    lines: list[str] = []
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            if inner.hidden:
                continue
            below = click.Context(inner, info_name=name, parent=context)
            lines += [f"{'#' * level} {below.command_path}", ""]
            if isinstance(inner, click.Group):
                lines += [inner.get_short_help_str(200), ""]
            else:
                lines += ["```text", inner.get_help(below).strip(), "```", ""]
            lines += _command(inner, below, min(level + 1, 4))
    return lines


def options() -> str:
    """The one table of options in code."""
    from headgate.streaming.options import BATCH_OPTIONS, READ_OPTIONS, SINK_OPTIONS

    lines = [
        "# Options",
        "",
        "After this page you know how to set every option of a stream, of a batch write and of a read. Python takes "
        'the first name, `format("headgate")` the second, the session the third. What the stream says comes before '
        "what the session says, and that before the default.",
        "",
    ]
    for title, table in (("Streams", SINK_OPTIONS), ("Batch writes", BATCH_OPTIONS), ("Reading", READ_OPTIONS)):
        lines += [
            f"## {title}",
            "",
            "| Python | option | session | values | default | meaning |",
            "|---|---|---|---|---|---|",
        ]
        for one in table:
            conf = f"`{one.conf}`" if one.conf else "–"
            default = "–" if one.default is None else f"`{one.default}`"
            name = f"`{one.name}…`" if one.is_family else f"`{one.name}`"
            cells = (f"`{one.argument}`", name, conf, one.kind.allowed, default, one.doc)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines += ["A direct writer's options are in [WAL-only or MemTable](../concepts/modes.md#options-of-a-writer).", ""]
    return "\n".join(lines)


def decoding() -> str:
    """Every rule of decoding, from the tables that apply it: docs/reference/decoding.md, which a test compares."""
    import pyarrow as pa

    from headgate.streaming.decode import api, debezium, raw
    from headgate.streaming.decode.avro import decoder as avro
    from headgate.streaming.decode.json.coerce import COERCIONS
    from headgate.streaming.decode.json.types import RULES
    from headgate.streaming.decode.metadata import KAFKA

    def why(kind: pa.DataType, value: str) -> str:
        found = api.json(pa.schema([("c", kind)])).decode(pa.array([f'{{"c": {value}}}'.encode()]))
        return str(found.bad.errors[0])

    def code(text: str) -> str:
        return f"`{text}`".replace("|", "\\|")

    lines = [
        "# Decoding: which value fills which column",
        "",
        "After this page you know what becomes of a value, for every type of column. It is rendered from the code that "
        "decodes: `python scripts/site.py` writes it.",
        "",
        _paragraphs(api.__doc__, "Promises", "Which type takes").replace(":\n1. ", ":\n\n1. ", 1).strip(),
        "",
        "## JSON",
        "",
        "| column | takes | for instance | a dead letter says |",
        "|---|---|---|---|",
    ]
    for rule in RULES:
        taken = ", ".join(map(code, rule.taken))
        refused = "<br>".join(f"{code(value)}: {why(rule.example, value)}" for value in rule.refused)
        lines.append(f"| {rule.arrow} | {rule.takes} | {taken} | {refused} |")
    lines += [
        "",
        f"The examples are of the types {', '.join(code(str(rule.example)) for rule in RULES)}.",
        "",
        "## Coercions",
        "",
        '`headgate.decode.json(schema, coerce=("string_to_number",))`, `--coerce string_to_number`, or the option '
        '`coerce` of `format("headgate")`. Off by default; a column that is coerced is read row by row, several times '
        "slower.",
        "",
        "| name | what it allows |",
        "|---|---|",
        *(f"| `{name}` | {one.rule} |" for name, one in COERCIONS.items()),
        "",
        "## Kafka's columns",
        "",
        "`metadata=` of every decoder fills columns with these; a column may have a wider type, and the key may be a "
        "string.",
        "",
        "| name | type |",
        "|---|---|",
        *(f"| `{field.name}` | {field.type} |" for field in KAFKA),
        "",
        "## Debezium",
        "",
        (debezium.__doc__ or "").strip(),
        "",
        "## Avro",
        "",
        (avro.__doc__ or "").partition("All records of")[0].strip(),
        "",
        "## Raw",
        "",
        (raw.__doc__ or "").strip(),
        "",
    ]
    return "\n".join(lines)


def _paragraphs(text: str | None, first: str, last: str) -> str:
    """What stands between two paragraphs, which begin so; the second is not in it."""
    assert text is not None
    return text[text.index(first) : text.index(last)]


def errors() -> str:
    """The tree of errors with its exit codes."""
    from headgate import errors as tree
    from headgate.cli.errors import exit_code, exit_table

    lines = [
        "# Errors and exit codes",
        "",
        "After this page you know which class to catch and which exit code to test. Branch on the class, never on the "
        "text. What to do about each is in the [runbook](../operations/runbook.md#errors).",
        "",
        "| class | is a | meaning | exit code | next step |",
        "|---|---|---|---|---|",
    ]
    classes = [one for one in vars(tree).values() if isinstance(one, type) and issubclass(one, tree.HeadgateError)]
    for one in classes:
        meaning = " ".join((one.__doc__ or "").split("\n\n")[0].split())
        base = "Exception" if one is tree.HeadgateError else f"`{one.__mro__[1].__name__}`"
        link = f"[`{one.__name__}`](../operations/runbook.md#{one.__name__.lower()})"
        lines.append(f"| {link} | {base} | {meaning} | {exit_code(one)} | {one.next_step} |")
    lines += ["", "## Exit codes", "", "```text", exit_table(), "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "decoding.md").write_text(decoding())
