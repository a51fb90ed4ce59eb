"""MkDocs hook: writes the help of every verb into docs/reference/options.md while the site is built.

The text is what the program prints, so it is right for whatever the command line is made of.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

MARKER = "<!-- help of every verb -->"
_COMMAND = re.compile(r"^│ ([a-z][a-z-]*)  ", re.MULTILINE)
_WIDTH = 88


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARKER, options()) if MARKER in markdown else markdown


def options() -> str:
    """A section per verb, and one per part of a verb that has parts (`measure vllm`)."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return "\n".join(pool.map(_section, commands()))


def commands() -> list[str]:
    verbs = _listed("")
    return [name for verb in verbs for name in (verb, *(f"{verb} {part}" for part in _listed(verb)))]


def _listed(command: str) -> list[str]:
    """The commands that a help text lists in its panel of commands."""
    _, _, panel = help_of(command).partition("─ Commands ─")
    return _COMMAND.findall(panel.partition("╰")[0])


def _section(command: str) -> str:
    level = "##" if " " not in command else "###"
    return f"{level} {command}\n\n```text\n{help_of(command)}\n```\n"


@cache
def help_of(command: str) -> str:
    words = [sys.executable, "-m", "specmargin", *command.split(), "--help"]
    environment = {**os.environ, "COLUMNS": str(_WIDTH), "TERMINAL_WIDTH": str(_WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    process = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    lines = [line.rstrip() for line in process.stdout.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
