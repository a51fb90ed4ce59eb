"""The tables of `lab.gpu.sglang_swing`, from its JSON: tokens per second, ratios with intervals, overhead.

    python -m lab.gpu.sglang_report FOLDER     FOLDER: with swing.json, and plain.json if that engine ran

Speeds, ratios and intervals are those of `report.py`.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from lab.gpu.report import (
    Phase,
    added_text,
    constant,
    nearest,
    over,
    phase_of,
    ratio_text,
    read_swing,
    table_of,
    table_row,
)

ADAPTIVE = "sglang"
CONTROLLER = "controller"


def tables(phases: list[Phase], plain: dict[int, float]) -> str:
    depths = sorted({int(name.split()[1]) for phase in phases for name in phase.fixed})
    return "\n\n".join([_speeds(phases, depths, plain), _by_load(phases), _whole(phases, depths)])


def _speeds(phases: list[Phase], depths: list[int], plain: dict[int, float]) -> str:
    titles = [f"depth {depth}" if depth else "off" for depth in depths]
    head = ["sequences, traffic", "none", *titles, "SGLang's adaptive mode", "table", "controller"]
    lines = [table_row(head), table_row(["---"] + ["---:"] * (len(head) - 1))]
    for phase in phases:
        none = f"{plain[phase.batch]:,.0f}" if phase.batch in plain else ""
        names = [*(f"depth {depth}" for depth in depths), ADAPTIVE, table_of(phase), CONTROLLER]
        speeds = [f"{phase.speed(name):,.0f}" if name in phase.seconds else "" for name in names]
        lines.append(table_row([phase.name, none, *speeds]))
    return "\n".join(lines)


def _by_load(phases: list[Phase]) -> str:
    head = ["controller over", "the best depth", "the table", "SGLang's adaptive mode", "time that the plug-in adds"]
    lines = [table_row(head), table_row(["---"] + ["---:"] * (len(head) - 1))]
    groups = {f"{batch} sequences": [p for p in phases if p.batch == batch] for batch in {p.batch for p in phases}}
    for title, chosen in [*sorted(groups.items(), key=lambda item: item[1][0].batch), ("whole swing", phases)]:
        others = (Phase.best_fixed, table_of, lambda _: ADAPTIVE)
        ratios = [ratio_text(over(chosen, CONTROLLER, other)) for other in others]
        lines.append(table_row([title, *ratios, added_text(chosen)]))
    return "\n".join(lines)


def _whole(phases: list[Phase], depths: list[int]) -> str:
    lines = [
        table_row(["whole swing, over", "controller", "SGLang's adaptive mode"]),
        table_row(["---", "---:", "---:"]),
    ]
    for depth in depths:
        other = partial(nearest, depth=depth)
        ratios = [ratio_text(over(phases, name, other)) for name in (CONTROLLER, ADAPTIVE)]
        lines.append(table_row([f"depth {depth}" if depth else "off", *ratios]))
    return "\n".join(lines)


def read_plain(path: Path) -> dict[int, float]:
    """Tokens per second of an engine without speculation, by load."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["rows"]
    return {row["batch"]: phase_of(row, row["traffic"], constant(0.0)).speed("depth 0") for row in rows}


def main(folder: Path) -> None:
    phases = sorted(read_swing(folder / "swing.json"), key=lambda phase: (phase.batch, phase.traffic))
    print(tables(phases, read_plain(folder / "plain.json")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
