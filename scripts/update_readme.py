"""Update what commands print: README.md, examples/README.md, docs/guide/plan.md and docs/results/design-space.md.

Run it whenever a price changes: make readme. Outputs are those of the base install, whose prices are the kernel laws.
README's table of accuracy is that of lab/results/accuracy.json, which `make lab` writes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_TABLE = re.compile(
    r"(^    specmargin design (.*BATCH)\n\n\| batch \| (.*) \|\n\|[- |]*\|\n)((?:\|.*\n)+)", re.MULTILINE
)
_PROGRAMS = {"specmargin": [sys.executable, "-m", "specmargin.cli.main"], "python": [sys.executable], "sh": ["sh"]}
_PRICED = ("plan", "simulate", "doctor")  # verbs of README that take --prices
_NEEDS_ENGINE = ("live-check", "profile")  # shown without output: their output is that of an engine or of its traffic

#: Lines of `make lab` that README shows, and what it calls them.
_ACCURACY = {
    "time between tokens, served MoE rows (p90)": "time between tokens, MoE servers of others (90th percentile)",
    "verify steps, nothing fitted (worst)": "verify steps of vLLM on an H200, nothing fitted (worst)",
    "rounds, fitted without qwen3-30b-a3b (worst)": "its rounds: Qwen3-30B-A3B, fitted to other models (worst)",
    "rounds, fitted without qwen3.6-35b-a3b (worst)": "its rounds: Qwen3.6-35B-A3B, fitted to other models (worst)",
    "published speedups (bias), by the best prices of each row": "speed-ups published by others (bias)",
    "published speedups-2 (bias), by the best prices of each row": "newer ones, workstation cards, losses (bias)",
}


def main() -> None:
    for page in (ROOT / "README.md", ROOT / "examples" / "README.md"):
        page.write_text(with_outputs(page.read_text()))
    _replace(ROOT / "docs" / "guide" / "plan.md", r"(```text\n)(?:Yes|Only|Uncertain).*?(\n```)", _first_plan())
    _design_tables(ROOT / "docs" / "results" / "design-space.md")


# --- consoles, and the table of accuracy ---


def with_outputs(text: str) -> str:
    """A page with the outputs of its commands, and its table of accuracy if it has one."""
    with TemporaryDirectory() as folder:
        prepare(Path(folder))
        text = re.sub(r"(?<=```console\n)(.*?)(?=```)", lambda match: _block(match[1], Path(folder)), text, flags=re.S)
    return re.sub(r"(\| predicted .*\n\|[- |]*\n)((?:\|.*\n)*)", lambda match: match[1] + accuracy_rows(), text)


def commands(block: str) -> list[str]:
    """Of a console block; a line that ends in a backslash continues."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)


def output(command: str, folder: Path) -> str | None:
    """What the base install prints in this folder, cut as `| head` or `| tail` says; None: it is not shown."""
    typed, _, cut = re.sub(r" +#.*$", "", command).partition(" | ")
    program, *arguments = shlex.split(typed)
    if program not in _PROGRAMS or arguments[0] in _NEEDS_ENGINE:
        return None
    if arguments[0] in _PRICED:
        arguments += ["--prices", "laws"]
    lines = _run([*_PROGRAMS[program], *arguments], folder).splitlines()
    count = int(cut.partition("-")[2] or len(lines))
    return "\n".join(line.rstrip() for line in (lines[-count:] if cut.startswith("tail") else lines[:count]))


def _block(block: str, folder: Path) -> str:
    shown = [(command, output(command, folder)) for command in commands(block)]
    if all(printed is None for _, printed in shown):
        return block
    return "\n".join(f"$ {command}\n{printed}\n" for command, printed in shown)


def prepare(folder: Path) -> None:
    """What commands read: the examples, and a profile of acceptance as captured rounds would give it."""
    (folder / "examples").symlink_to(ROOT / "examples")
    profile = ROOT / "src" / "specmargin" / "catalog" / "acceptance" / "reference-moe.acceptance.json"
    shutil.copy(profile, folder / "mine.acceptance.json")


def accuracy_rows() -> str:
    lines = {line["what"]: line for line in json.loads((ROOT / "lab" / "results" / "accuracy.json").read_text())}
    rows = []
    for what, name in _ACCURACY.items():
        errors = [lines[what]["errors"].get(source, "") for source in ("tables", "laws", "datasheet")]
        cells = [name, format(lines[what]["count"], ","), *errors]
        rows.append(f"| {' | '.join(cells)} |\n")
    return "".join(rows)


# --- other pages ---


def _first_plan() -> str:
    return output("specmargin plan qwen3.6-35b-a3b --gpu h200", ROOT) or ""


def _run(command: list[str], folder: Path = ROOT) -> str:
    beside = str(Path(sys.executable).parent)  # where `specmargin` is installed
    environment = os.environ | {"COLUMNS": "80", "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"}
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment).stdout


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
        asked = ["design", *shlex.split(command.replace("BATCH", batch)), "--json"]
        rows = json.loads(_run([*_PROGRAMS["specmargin"], *asked]))["rows"]
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
