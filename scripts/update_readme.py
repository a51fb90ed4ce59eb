"""Update command output: the first plan in README.md and docs/guide/plan.md, tables of docs/results/design-space.md.

Run it whenever a price changes: make readme
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_TABLE = re.compile(
    r"(^    specmargin design (.*BATCH)\n\n\| batch \| (.*) \|\n\|[- |]*\|\n)((?:\|.*\n)+)", re.MULTILINE
)


def main() -> None:
    lines = _first_screen()
    _replace(ROOT / "README.md", r"(```console\n\$ make plan\n).*?(\n```)", lines)
    _replace(ROOT / "docs" / "guide" / "plan.md", r"(```text\n)(?:Yes|Only|Uncertain).*?(\n```)", lines)
    _design_tables(ROOT / "docs" / "results" / "design-space.md")


def _output(arguments: str) -> str:
    command = [sys.executable, "-m", "specmargin.cli.main", *shlex.split(arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _first_screen() -> str:
    command = re.search(r"^plan:.*\n\t\$\(BIN\)/specmargin (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if command is None:
        sys.exit("the Makefile has no target `plan`")
    return "\n".join(line.rstrip() for line in _output(command[1]).rstrip().splitlines())


def _replace(page: Path, pattern: str, lines: str) -> None:
    block = re.compile(pattern, re.DOTALL)
    page.write_text(block.sub(lambda match: match[1] + lines + match[2], page.read_text(), count=1))


def _design_tables(page: Path) -> None:
    page.write_text(_TABLE.sub(_table, page.read_text()))


def _table(match: re.Match[str]) -> str:
    head, command, heading, body = match.groups()
    lines = []
    for line in body.splitlines():
        batch = line.strip("|").split("|")[0].strip()
        rows = json.loads(_output(f"design {command.replace('BATCH', batch)} --json"))["rows"]
        by_name = {_name(row, heading): row for row in rows}
        cells = [
            f"{r['speedup']:.2f}× {r['goodput_tokens_per_second']:,.0f}"
            for r in map(by_name.get, heading.split(" | "))
            if r
        ]
        lines.append(f"| {batch} | {' | '.join(cells)} |\n")
    return head + "".join(lines)


def _name(row: dict[str, Any], heading: str) -> str:
    shared = f", {row['shared_share']:.0%} shared" if "shared" in heading else ""
    return f"{row['experts_per_token']} of {row['experts']}{shared}"


if __name__ == "__main__":
    main()
