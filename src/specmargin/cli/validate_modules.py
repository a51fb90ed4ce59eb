"""`specmargin validate modules`: sums of parts against the measured rows of whole attention modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from specmargin.cli import render
from specmargin.prices.kernels import store

if TYPE_CHECKING:
    from specmargin.validation.modules import ModuleLine


def validate_modules(out: Console) -> list[dict[str, Any]]:
    from specmargin.validation.modules import SOURCES, TOLERANCE, module_lines

    lines = [line for gpu in render.tracked("modules", tuple(store.SYSTEMS)) for line in module_lines((gpu,))]
    columns = [("module", "left"), ("model", "left"), ("gpu", "left"), ("engine", "left"), ("rows", "right")]
    columns += [(source, "right") for source in SOURCES]
    shown = render.table("Attention modules: sum of parts over measured time, median (worst)", columns)
    for group in _by_module(lines):
        first = group[0]
        cells = [f"{line.median_ratio:.2f} ({line.worst_ratio:.2f})" for line in group]
        mark = " *" if first.launch_bound else ""
        shown.add_row(first.kind, first.model, first.gpu, first.engine + mark, f"{first.rows:,}", *cells)
    out.print(shown)
    for source in SOURCES:
        chosen = [line for line in lines if line.source == source]
        above = sum(line.above * line.rows for line in chosen) / max(sum(line.rows for line in chosen), 1)
        text = f"{source}: {above:.1%} of all rows are exceeded by more than {TOLERANCE:.0%}"
        out.print(text, style="dim", markup=False)
    out.print("* launches included in the rows: they only bound the sum from above", style="dim", markup=False)
    out.print()
    return [asdict(line) for line in lines]


def _by_module(lines: Sequence[ModuleLine]) -> list[list[ModuleLine]]:
    groups: dict[tuple[str, str, str, str], list[ModuleLine]] = {}
    for line in lines:
        groups.setdefault((line.kind, line.model, line.gpu, line.engine), []).append(line)
    return [groups[key] for key in sorted(groups)]
