"""Everything that needs no GPU, and a table of accuracy at the end: a few minutes.

make lab, or: python -m lab.validation [PART ...]. With all parts, the table is also written to
lab/results/accuracy.json, from which `make readme` takes that of README.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import import_module

from rich.console import Console

from lab.terminal import console, parser, run
from lab.validation.accuracy import ACCURACY, Accuracy, show_accuracy
from specmargin.errors import InputError
from specmargin.prices.kernels import store

PARTS = {
    "served": "lab.validation.served.report",
    "steps": "lab.validation.steps",
    "rounds": "lab.validation.rounds.report",
    "speedups": "lab.validation.speedups",
    "kernels": "lab.validation.kernels",
    "modules": "lab.validation.modules",
    "prompt_modules": "lab.validation.prompt_modules",
    "scaled": "lab.validation.scaled",
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    chosen = options.parse_args().parts or [*PARTS]
    if unknown := [name for name in chosen if name not in PARTS]:
        raise InputError(f"{unknown[0]!r} is not a part; choose from {', '.join(PARTS)}")
    store.data_folder()  # without the kernel tables nothing can be compared: say so first
    out = console()
    lines = [line for part in PARTS if part in chosen for line in _report(part, out)]
    show_accuracy(out, lines)
    if set(chosen) == set(PARTS):
        ACCURACY.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n", encoding="utf-8")


def _report(part: str, out: Console) -> list[Accuracy]:
    lines: list[Accuracy] = import_module(PARTS[part]).report(out)
    return lines


if __name__ == "__main__":
    run(main)
