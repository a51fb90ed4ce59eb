"""The README is run: its outputs are those of its commands; it is short, and its links lead somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from specmargin.cli.main import run
from specmargin.verbs import split_verb
from tests.conftest import ROOT

PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "examples/README.md")}
README = PAGES["README.md"]
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
INLINE = sorted(set(re.findall(r"`specmargin ([^`]*)`", README)))
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "update_readme.py"))
commands, output, with_outputs = (SCRIPT[name] for name in ("commands", "output", "with_outputs"))


def test_it_is_read_in_a_hurry() -> None:
    assert len(README.splitlines()) < 150
    assert README.index("```console") < 600  # a result comes first
    assert re.findall(r"^## (.*)$", README, re.MULTILINE) == [
        "What it is for",
        "Install",
        "Five commands",
        "Start a gated vLLM",
        "How right it is",
        "Not supported",
        "Where next",
    ]


def test_the_first_screen_is_what_the_first_command_prints(tmp_path: Path) -> None:
    first, _, printed = BLOCKS[0].removeprefix("$ ").partition("\n")
    assert first.startswith("specmargin plan qwen3.6-35b-a3b --gpu h200")
    assert output(first, tmp_path) == printed.rstrip("\n")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_output_is_what_its_command_prints(page: str) -> None:
    """And the table of accuracy is that of `make lab`. For examples: each of them runs."""
    assert with_outputs(PAGES[page]) == PAGES[page], "run `make readme`"


def test_every_command_has_a_verb() -> None:
    typed = [shlex.split(command, comments=True) for block in BLOCKS for command in commands(block)]
    asked = [words[1:] for words in typed if words[0] == "specmargin"] + [text.split() for text in INLINE]
    assert len(asked) > 10
    assert all(split_verb(words)[0] for words in asked)


@pytest.mark.parametrize("command", [text for text in INLINE if "http" not in text and text != "explore"])
def test_commands_in_the_text_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process: a start takes longer than most of them."""
    verb, *arguments = shlex.split(command)
    assert run(verb, arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", sorted(set(re.findall(r"\]\(((?:docs/|examples/|[A-Z]+\.)[^)]*)\)", README))))
def test_links_lead_somewhere(page: str) -> None:
    assert (ROOT / page).is_file()
