"""docs/results/design-space.md is run: under each command that says BATCH stands a table of what it prints."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from specmargin.cli.main import run
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "results" / "design-space.md").read_text()
TABLES = re.findall(
    r"^    specmargin design (.*BATCH)\n\n\| batch \| (.*) \|\n\|[- |]*\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE
)


def test_the_page_has_its_tables() -> None:
    assert len(TABLES) == PAGE.count("BATCH\n") == 3


@pytest.mark.parametrize(("command", "heading", "body"), TABLES, ids=["more experts", "equal active", "equal total"])
def test_tables_are_what_the_command_prints(
    command: str, heading: str, body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in body.splitlines():
        batch, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert run("design", [*shlex.split(command.replace("BATCH", batch)), "--json"]) == 0
        printed = {_name(row, heading): row for row in json.loads(capsys.readouterr().out)["rows"]}
        for name, cell in zip(heading.split(" | "), cells, strict=True):
            row = printed[name]
            assert cell == f"{row['speedup']:.2f}× {row['goodput_tokens_per_second']:,.0f}", (batch, name)


def _name(row: dict[str, float], heading: str) -> str:
    shared = f", {row['shared_share']:.0%} shared" if "shared" in heading else ""
    return f"{row['experts_per_token']} of {row['experts']}{shared}"
