"""MkDocs hook: fills three pages of docs/reference while the site is built.

options.md gets the help of every verb, as the program prints it; json.md the keys of every answer, as the golden files
record them; python.md a directive per public name, which mkdocstrings turns into signature and docstring.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import specmargin

_KEYS = Path(__file__).resolve().parents[1] / "tests" / "golden" / "data" / "verbs.json"
_COMMAND = re.compile(r"^│ ([a-z][a-z-]*(?: [a-z-]+)*)  ", re.MULTILINE)
_WIDTH = 88


def on_page_markdown(markdown: str, **_: Any) -> str:
    for marker, fill in _FILLED.items():
        if marker in markdown:
            markdown = markdown.replace(marker, fill())
    return markdown


def options() -> str:
    """A section per verb, and one per part of a verb that has parts (`measure vllm`)."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        verbs = _listed("")
        if "plan" not in verbs:
            raise RuntimeError("the help of specmargin lists no verbs: see _COMMAND in scripts/docs_hooks.py")
        parts = dict(zip(verbs, pool.map(_listed, verbs), strict=True))
        commands = [name for verb in verbs for name in (verb, *(f"{verb} {part}" for part in parts[verb]))]
        return "\n".join(pool.map(_section, commands))


def _listed(command: str) -> list[str]:
    """The commands in the panel of commands of a help text."""
    _, _, panel = help_of(command).partition("─ Commands ─")
    return _COMMAND.findall(panel.partition("╰")[0])


def _section(command: str) -> str:
    return f"## {command}\n\n```text\n{help_of(command)}\n```\n"


@cache
def help_of(command: str) -> str:
    """What `specmargin COMMAND --help` prints, without colours."""
    words = [sys.executable, "-m", "specmargin", *command.split(), "--help"]
    environment = {**os.environ, "COLUMNS": str(_WIDTH), "TERMINAL_WIDTH": str(_WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    process = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    lines = [line.rstrip() for line in process.stdout.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


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
