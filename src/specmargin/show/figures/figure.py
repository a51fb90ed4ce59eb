"""A figure: rows by table, its texts, and the function that draws them.

The chart's structure depends on `shape` alone and never on the rows. A page builds it once and then only receives rows;
a file gets title, takeaway, chart and source line together.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt
import numpy as np
from altair.utils.schemapi import debug_mode

from specmargin.show.figures.marks import x_at, y_at
from specmargin.show.figures.theme import LIGHT, Theme, config

Row = Mapping[str, Any]
Chart = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart | alt.FacetChart
Draw = Callable[..., Chart]

WIDTH, HEIGHT = 620, 340  # pixels of a figure in a file
_PAGE_WIDTH, _PAGE_HEIGHT = 400, 280  # pixels of a drawing in a page without scripts
_CHARACTERS = 96  # of a subtitle's line


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str
    title: str
    takeaway: str  # the conclusion, with numbers
    source: str
    tables: Mapping[str, Sequence[Row]]
    draw: Draw
    shape: tuple[Hashable, ...] = ()

    def chart(self, theme: Theme = LIGHT) -> alt.VConcatChart:
        """The whole figure as one Altair chart: title, takeaway, drawing, source line."""
        drawing = self.draw(*self.shape)
        wide = isinstance(drawing, alt.HConcatChart | alt.ConcatChart)
        if isinstance(drawing, alt.Chart | alt.LayerChart) and drawing.width is alt.Undefined:
            drawing = drawing.properties(width=WIDTH, height=HEIGHT)
        line = int(_CHARACTERS * (1.6 if wide else 1.0))
        title = alt.TitleParams(self.title, subtitle=_balanced(self.takeaway, line) or [""])
        caption = (
            alt.Chart(alt.InlineData(values=[{"text": textwrap.wrap(f"Source: {self.source}", line + 14)}]))
            .mark_text(style="source", lineHeight=14)
            .encode(text=alt.Text("text:N"), x=x_at(0), y=y_at(0))
            .properties(height=14, width=WIDTH)
        )
        apart = alt.Resolve(
            legend=alt.LegendResolveMap(color="independent", shape="independent", strokeDash="independent")
        )  # legends stay with the drawing, above the source line
        whole = alt.VConcatChart(
            vconcat=[drawing, caption], title=title, spacing=22, datasets=dict(self.tables), resolve=apart
        )
        return whole.properties(config=alt.Config(**config(theme)))

    @property
    def structure(self) -> dict[str, Any]:
        """The Vega-Lite specification without data, title and theme: equal for equal `key`s."""
        return _structure(self.draw, self.shape)

    def drawing(self, theme: Theme = LIGHT) -> dict[str, Any]:
        """The specification of the drawing alone, for a page that shows title, takeaway and source itself.

        Narrow enough to be read on a telephone, where it is scaled down.
        """
        spec = _placed(self.structure)
        return spec | {"datasets": spec.get("datasets", {}) | dict(self.tables), "config": config(theme)}

    @property
    def key(self) -> str:
        return ":".join([self.name, *map(str, self.shape)])

    def table_rows(self) -> list[dict[str, Any]]:
        """All rows of all tables, for a download."""
        return [{"table": name, **row} for name, rows in self.tables.items() for row in rows]


def _balanced(text: str, width: int) -> list[str]:
    """As few lines as `width` allows, of equal length: no single word on the last line."""
    lines = textwrap.wrap(text, width)
    for narrower in range(width - 1, width // 2, -1):
        wrapped = textwrap.wrap(text, narrower)
        if len(wrapped) > len(lines):
            break
        lines = wrapped
    return lines


@lru_cache(maxsize=256)
def _structure(draw: Draw, shape: tuple[Hashable, ...]) -> dict[str, Any]:
    # Not validated, which would take most of the time until a figure appears: tests validate every figure.
    with debug_mode(False):
        spec: dict[str, Any] = draw(*shape).to_dict(validate=False, context={"pre_transform": False})
    spec.pop("config", None)
    spec.pop("title", None)
    return spec


def _placed(structure: dict[str, Any]) -> dict[str, Any]:
    """Panels with a width are below each other; panels of cells, which have none, are two in a row."""
    spec = dict(structure)
    side_by_side, stacked = spec.pop("hconcat", None), spec.pop("vconcat", None)
    panels = side_by_side or stacked
    if panels is None:
        size = {"width": _PAGE_WIDTH, "height": _PAGE_HEIGHT}
        return spec if {"width", "concat"} & spec.keys() else spec | size
    wide = [isinstance(panel.get("width"), int | float) for panel in panels]
    placed = [panel | ({"width": _PAGE_WIDTH} if grows else {}) for panel, grows in zip(panels, wide, strict=True)]
    if side_by_side is None:
        return spec | {"vconcat": placed}
    return spec | {"concat": placed, "columns": 1 if all(wide) else 2}


def end_labels(
    ends: Mapping[str, tuple[float, float]], *, x: str, y: str, gap: float, log: bool = False, reach: float = np.inf
) -> list[dict[str, Any]]:
    """Labels at the ends of lines, moved apart where they would touch.

    `gap`: in units of y (of log2 y if `log`). `reach`: labels further apart than this in x do not touch.
    """
    order = sorted(ends, key=lambda name: ends[name][1])
    across, values = np.array([ends[name] for name in order], dtype=np.float64).reshape(-1, 2).T
    heights = np.log2(np.maximum(values, 1e-12)) if log else values.copy()
    for _ in range(8):
        for low in range(len(order) - 1):
            short = gap - (heights[low + 1] - heights[low])
            if short > 0 and abs(across[low + 1] - across[low]) <= reach:
                heights[low] -= short / 2
                heights[low + 1] += short / 2
    final = 2.0**heights if log else heights
    return [{x: ends[name][0], y: float(final[i]), "series": name} for i, name in enumerate(order)]


def columns(**values: Any) -> list[dict[str, Any]]:
    """A table's rows from its columns: numbers are rounded, and a single value is that of every row."""
    many = {name: _plain(column) for name, column in values.items() if _is_column(column)}
    single = {name: value for name, value in values.items() if name not in many}
    return [{**dict(zip(many, row, strict=True)), **single} for row in zip(*many.values(), strict=True)]


def _is_column(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _plain(column: Iterable[Any]) -> list[Any]:
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    return [rounded(value) if isinstance(value, float) else value for value in values]


def rounded(value: float, digits: int = 4) -> float:
    """Round to significant digits: four exceed the resolution of a chart and keep rows small."""
    return float(f"{float(value):.{digits}g}")
