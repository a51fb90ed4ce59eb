"""MkDocs hook: fills three pages of docs/reference while the site is built.

options.md gets the help and the options of every verb, from its command; json.md the keys of every answer, as golden
files record them; python.md a directive per public name, which mkdocstrings turns into signature and docstring.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import typer
from typer.main import get_command

import specmargin
from specmargin.cli.verbs import command
from specmargin.verbs import find_verb, verb_names

_KEYS = Path(__file__).resolve().parents[1] / "tests" / "golden" / "data" / "verbs.json"


def on_page_markdown(markdown: str, **_: Any) -> str:
    for marker, fill in _FILLED.items():
        if marker in markdown:
            markdown = markdown.replace(marker, fill())
    return markdown


def options() -> str:
    """A section per verb: its help, and a table per panel of options."""
    return "\n".join(map(_section, verb_names()))


def _section(name: str) -> str:
    app = get_command(command(find_verb(name)))
    context = typer.Context(app, info_name=f"specmargin {name}")
    shown = [parameter for parameter in app.get_params(context) if not getattr(parameter, "hidden", False)]
    panels: dict[str, list[str]] = {}
    for parameter in shown:
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            panel = getattr(parameter, "rich_help_panel", None) or f"{parameter.param_type_name.title()}s"
            panels.setdefault(panel, []).append(_row(*record))
    usage = app.get_usage(context).removeprefix("Usage: ")
    tables = [f"| {panel} | |\n| --- | --- |\n{chr(10).join(rows)}\n" for panel, rows in panels.items()]
    return "\n".join([f"## {name}\n", f"```text\n{usage}\n```\n", _help(app.help or ""), *tables])


def _help(text: str) -> str:
    """Paragraphs as prose; lines that the terminal keeps as they are (marked with \\b) as one block."""
    parts = (part.strip("\n") for part in text.split("\n\n"))
    pages = (f"```text\n{dedent(part[2:])}\n```\n" if part[:1] == "\b" else f"{part}\n" for part in parts)
    return "\n".join(pages).replace("```\n\n```text\n", "")


def _row(names: str, meaning: str) -> str:
    meaning = re.sub(r"\s+", " ", meaning).replace("[required]", "**Required.**")
    meaning = re.sub(r"\[default: \((.*)\)\]$", r"Default: \1.", meaning)
    names = re.sub(r" <.*>$", "", names).replace("|", "\\|")
    return f"| `{names}` | {meaning} |"


def keys() -> str:
    """A section per recorded answer, with a table of key paths and types."""
    answers: dict[str, dict[str, str]] = json.loads(_KEYS.read_text())
    return "\n".join(_key_section(name, paths) for name, paths in answers.items())


def _key_section(name: str, paths: dict[str, str]) -> str:
    rows = "\n".join(f"| `{path}` | {kind.replace('|', ' or ')} |" for path, kind in paths.items())
    return f"## {name}\n\n| key | type |\n| --- | --- |\n{rows}\n"


def names() -> str:
    """Verbs, their answers, other functions and types, in this order."""
    answers = [name for name in specmargin.__all__ if name.endswith(("Answer", "Result"))]
    verbs = [name for name in specmargin.__all__ if any(answer.lower().startswith(name) for answer in answers)]
    others = [name for name in specmargin.__all__ if name not in (*answers, *verbs, "__version__")]
    groups = {
        "Verbs": verbs,
        "Answers": answers,
        "Functions": [name for name in others if name.islower()],
        "Types": [name for name in others if not name.islower()],
    }
    return "\n".join(_name_section(heading, group) for heading, group in groups.items())


def _name_section(heading: str, group: list[str]) -> str:
    return "\n".join([f"## {heading}\n", *(f"::: specmargin.{name}\n" for name in group)])


_FILLED = {
    "<!-- help of every verb -->": options,
    "<!-- keys of every answer -->": keys,
    "<!-- public names -->": names,
}
