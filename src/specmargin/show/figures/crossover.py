"""Two drafters compared by depth and batch."""

from __future__ import annotations

import altair as alt
import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.show.figures.curve import MAP_BATCHES, fitting
from specmargin.show.figures.figure import Figure, columns
from specmargin.show.figures.marks import BATCH, Plane, layers, ordinal, tips
from specmargin.show.figures.words import price_source
from specmargin.step import BoolArray, FloatArray

_EVEN = 0.02  # relative goodput difference that counts as even
_FIRST, _SECOND = "▾", "▴"  # in front of the lead of each drafter
_REACHES = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)  # ratios at the ends of the colour scale: the first that the data fit in


def crossover_figure(first: Pricer, second: Pricer, *, max_depth: int = 8) -> Figure:
    """Goodput of the second drafter over the first's, at the same batch and depth; each with its own acceptance."""
    batches = fitting(first, MAP_BATCHES)
    deep = Setting.of(second.scenario, max_depth=max_depth).max_depth
    setting = Setting.of(first.scenario, max_depth=deep)
    first_grid, second_grid = first.grid(batches, setting.max_depth), second.grid(batches, setting.max_depth)
    ratio = second_grid.goodput / first_grid.goodput
    allowed = setting.allowed(first_grid)
    reach = next((r for r in _REACHES if _extent(ratio[:, 1:], allowed[:, 1:]) <= r), _REACHES[-1])
    names = (first.scenario.drafter.name, second.scenario.drafter.name)
    row, column = np.nonzero(allowed[:, 1:])
    ratios = ratio[row, column + 1]
    rows = columns(
        batch=np.array(batches)[row],
        depth=column + 1,
        ratio=ratios,
        text=[_cell(value) for value in ratios],
        winner=[_winner(value, names) for value in ratios],
        high=np.abs(np.log(ratios)) > 0.75 * np.log(reach),
    )
    kinds = dict.fromkeys(str(side.scenario.survival.source.kind) for side in (first, second))
    best = [np.where(allowed, grid.goodput, 0.0).max(axis=1) for grid in (first_grid, second_grid)]
    return Figure(
        name="crossover",
        title=f"{names[0]} compared with {names[1]}",
        takeaway=_words(first.scenario, batches, best[1] / best[0], names),
        source=f"{price_source(first)}; acceptance per drafter ({' and '.join(kinds)})",
        tables={"cells": rows},
        draw=_draw,
        shape=(names, setting.max_depth, reach),
    )


def _extent(ratio: FloatArray, allowed: BoolArray) -> float:
    """The largest lead of either drafter."""
    leads = np.exp(np.abs(np.log(ratio[allowed])))
    return float(leads.max(initial=1.0))


def _even(ratio: float) -> bool:
    """As it is printed: two cells with the same number are marked alike."""
    return round(max(ratio, 1.0 / ratio), 2) < 1.0 + _EVEN


def _cell(ratio: float) -> str:
    """The lead, and whose it is: a mark that does not need colour."""
    mark = "" if _even(ratio) else _SECOND if ratio > 1.0 else _FIRST
    return f"{mark}{max(ratio, 1.0 / ratio):.2f}"


def _winner(ratio: float, names: tuple[str, str]) -> str:
    if _even(ratio):
        return "even"
    return names[1] if ratio > 1.0 else names[0]


def _words(scenario: Scenario, batches: list[int], ratio: np.ndarray, names: tuple[str, str]) -> str:
    turns = [batches[i + 1] for i in range(len(batches) - 1) if (ratio[i] > 1.0) != (ratio[i + 1] > 1.0)]
    ahead = names[1] if ratio[0] > 1.0 else names[0]
    lead = (
        f"{scenario.architecture.name} on {scenario.device.name}: at its best depth {ahead} leads at batch {batches[0]}"
    )
    where = f", and the lead changes at batch {turns[0]}" if turns else " and at every batch shown"
    by = max(ratio[0], 1 / ratio[0])
    cells = f"Cells: goodput of the better one ({_FIRST} {names[0]}, {_SECOND} {names[1]}) over the other, same depth."
    return f"{lead} ({by:.2f}×){where}. {cells}"


def _draw(names: tuple[str, str], deep: int, reach: float) -> alt.LayerChart:
    y = alt.Y("depth:O", title="draft tokens", scale=alt.Scale(domain=list(range(deep, 0, -1))))
    side = f"datum.value < 1 ? '{_FIRST} {names[0]} ' : '{_SECOND} {names[1]} '"
    ahead = f"({side}) + format(max(datum.value, 1 / datum.value), '.3~g') + '×'"
    colour = alt.Color(
        "ratio:Q",
        scale=alt.Scale(type="log", range="diverging", interpolate="lab", domain=[1.0 / reach, reach], clamp=True),
        legend=alt.Legend(
            title="ahead",
            values=[1.0 / reach, 1.0, reach],
            labelExpr=f"abs(datum.value - 1) < 0.01 ? 'even' : {ahead}",
            gradientLength=140,
        ),
    )
    tooltip = tips("batch:O", "depth:O|draft", "winner:N|ahead", "ratio:Q||.2f")
    return layers(Plane(ordinal("batch", BATCH), y).cells(colour, tooltip=tooltip))
