"""The README is run: its first screen is the output of its first command, its snippet works, its commands exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from specmargin.cli.main import run
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_the_first_screen_is_the_output_of_make_plan() -> None:
    command = re.search(r"^plan:.*\n\t\$\(BIN\)/specmargin (.*)$", MAKEFILE, re.MULTILINE)
    block = re.search(r"```console\n\$ make plan\n(.*?)```", README, re.DOTALL)
    assert command
    assert block
    process = [sys.executable, "-m", "specmargin.cli.main", *shlex.split(command[1])]
    printed = subprocess.run(process, capture_output=True, text=True, check=True).stdout
    assert _trimmed(block[1]) == _trimmed(printed)
    assert README.index("```console") < 1500  # a result within the first screen


def test_the_python_snippet_runs(capsys: pytest.CaptureFixture[str]) -> None:
    snippet = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippet
    exec(compile(snippet[1], "README.md", "exec"), {})
    assert capsys.readouterr().out.count("batch ") == 3


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`specmargin ([^`]*)`", README))))
def test_commands_of_the_tables_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process: a start takes longer than most of them."""
    verb, *arguments = shlex.split(command.replace("MODEL", "qwen3.6-35b-a3b").replace("GPU", "h200"))
    assert run(verb, arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", sorted(set(re.findall(r"\]\(((?:docs/|[A-Z]+\.)[^)]*)\)", README))))
def test_links_lead_somewhere(page: str) -> None:
    assert (ROOT / page).is_file()
