"""docs/map.md leads somewhere: every path in it exists, and its list of modules is what the docstrings say."""

from __future__ import annotations

import re
import runpy

import pytest

from tests.conftest import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "update_map.py"))
SOURCE, first_sentence = SCRIPT["SOURCE"], SCRIPT["first_sentence"]
WRITTEN, _, LISTED = SCRIPT["PAGE"].read_text(encoding="utf-8").partition(SCRIPT["HEADING"])
WALK, _, CHECKLISTS = WRITTEN.partition("## Where to add a thing\n")
PATHS = sorted(set(re.findall(r"`([a-z_]+/[\w./]*)`", WRITTEN)))


def test_the_walk_is_short() -> None:
    assert CHECKLISTS
    assert len(WALK.splitlines()) <= 60


def test_the_list_is_current() -> None:
    assert SCRIPT["modules_text"]() == LISTED, "run: make map"


@pytest.mark.parametrize("path", PATHS)
def test_paths_exist(path: str) -> None:
    assert (SOURCE / path).exists() or (ROOT / path).exists()


def test_every_module_says_what_it_is() -> None:
    silent = [file for file in SOURCE.rglob("*.py") if file.read_text() and not first_sentence(file)]
    assert [file.name for file in silent if not file.name.startswith("_")] == []
