"""The marks that charts are made of, each over a table of the figure, and the axes and scales that charts share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

XAxis = alt.X | alt.XValue
YAxis = alt.Y | alt.YValue
Layers = list[alt.Chart]


@dataclass(frozen=True, slots=True)
class Plane:
    """A pair of axes to draw tables on.

    Options of a mark that are Altair channels (`color=alt.Color(…)`, `tooltip=tips(…)`) encode it; all others are its
    properties (`size=22`, `style="reference"`). Styles are those of the theme.
    """

    x: XAxis
    y: YAxis

    def line(self, table: str, **options: Any) -> alt.Chart:
        return _marked("line", table, x=self.x, y=self.y, **options)

    def points(self, table: str, **options: Any) -> alt.Chart:
        return _marked("point", table, x=self.x, y=self.y, **options)

    def traced(self, table: str, *, tooltip: Sequence[alt.Tooltip], size: int = 36, **options: Any) -> Layers:
        """A line and its points."""
        shared = {name: value for name, value in options.items() if name == "color"}
        return [self.line(table, **options), self.points(table, size=size, tooltip=tooltip, **shared)]

    def bars(self, table: str, **options: Any) -> alt.Chart:
        return _marked("bar", table, x=self.x, y=self.y, **options)

    def rects(self, table: str, **options: Any) -> alt.Chart:
        return _marked("rect", table, x=self.x, y=self.y, **options)

    def area(self, table: str, **options: Any) -> alt.Chart:
        return _marked("area", table, x=self.x, y=self.y, **options)

    def level(self, table: str, style: str = "reference") -> alt.Chart:
        """A horizontal rule."""
        return _marked("rule", table, y=self.y, style=style)

    def at(self, table: str, style: str = "marker") -> alt.Chart:
        """A vertical rule."""
        return _marked("rule", table, x=self.x, style=style)

    def text(self, table: str, field: str = "text:N", form: str | None = None, **options: Any) -> alt.Chart:
        shown = alt.Text(field) if form is None else alt.Text(field, format=form)
        return _marked("text", table, x=self.x, y=self.y, text=shown, **options)

    def haloed(self, table: str, field: str = "text:N", *, style: str, **options: Any) -> Layers:
        """Text that stays readable on lines."""
        plain = {name: value for name, value in options.items() if name != "color"}
        return [
            self.text(table, field, style=[style, "halo"], **plain),
            self.text(table, field, style=style, **options),
        ]

    def cells(self, colour: alt.Color, *, tooltip: Sequence[alt.Tooltip]) -> Layers:
        """A heat map of the table `cells`: its `text` is dark on cells of a low value and light on `high` ones."""
        texts = (self.text("cells", style=style) for style in ("cell-low", "cell-high"))
        chosen = ("!datum.high", "datum.high")
        return [
            self.rects("cells", color=colour, tooltip=tooltip),
            *(text.transform_filter(which) for text, which in zip(texts, chosen, strict=True)),
        ]


def area_between(table: str, start: alt.X, end: str, style: str) -> alt.Chart:
    """A shaded range of x over the whole height."""
    return _marked("rect", table, x=start, x2=alt.X2(end), style=style)


def layers(*parts: alt.Chart | Layers, **properties: Any) -> alt.LayerChart:
    """One above the other, the first lowest."""
    flat = [mark for part in parts for mark in (part if isinstance(part, list) else [part])]
    return alt.LayerChart(layer=flat, **properties)


def _marked(kind: str, table: str, **options: Any) -> alt.Chart:
    """Encoded with channels (`alt.Text("text:N")`), not with their names: Altair takes 5 ms to look one up."""
    channels = {
        name: value for name, value in options.items() if name == "tooltip" or isinstance(value, alt.SchemaBase | dict)
    }
    properties = {name: value for name, value in options.items() if name not in channels}
    chart: alt.Chart = getattr(alt.Chart(alt.NamedData(table)), f"mark_{kind}")(**properties).encode(**channels)
    return chart


# --- channels ---


def tips(*fields: str) -> list[alt.Tooltip]:
    """What a pointer shows: `field:Q`, with a title and a format where they are needed, as `tpot:Q|ms/token|.2f`."""
    shown = []
    for field in fields:
        name, title, form = (*field.split("|"), "", "")[:3]
        options: dict[str, Any] = {key: value for key, value in (("title", title), ("format", form)) if value}
        shown.append(alt.Tooltip(name, **options))
    return shown


def by_name(field: str, names: Iterable[str], legend: alt.Legend | None = None) -> alt.Color:
    """A colour per name: its place among `names` is the place in the theme's series."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(names)), legend=legend)


def dashed(field: str, dashes: Mapping[str, Sequence[int]], legend: alt.Legend | None = None) -> alt.StrokeDash:
    scale = alt.Scale(domain=list(dashes), range=[list(dash) for dash in dashes.values()])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=legend)


def x_at(value: float | str) -> alt.XValue:
    """A fixed place in pixels, or `width`."""
    return alt.XValue(value)  # type: ignore[no-untyped-call]


def y_at(value: float | str) -> alt.YValue:
    """A fixed place in pixels, or `height`."""
    return alt.YValue(value)  # type: ignore[no-untyped-call]


# --- axes ---

BATCH = "sequences decoding together (batch)"


def batch_axis() -> alt.X:
    return by_powers("batch", BATCH)


def by_powers(field: str, title: str, last: int = 20) -> alt.X:
    """A logarithmic axis with powers of two."""
    return alt.X(f"{field}:Q", title=title, scale=LOG2, axis=powers(last))


LOG2 = alt.Scale(type="log", base=2, nice=False)


def powers(last: int = 20) -> alt.Axis:
    shown = "datum.value >= 1024 ? datum.value / 1024 + 'k' : format(datum.value, '~g')"
    return alt.Axis(values=[2**power for power in range(last)], labelExpr=shown)


def ordinal(field: str, title: str, **options: Any) -> alt.X:
    """A category per value."""
    return alt.X(f"{field}:O", title=title, axis=alt.Axis(labelAngle=0), **options)


def percent(field: str, title: str, *, ticks: int | None = None, **options: Any) -> alt.Y:
    axis = alt.Axis(format="%") if ticks is None else alt.Axis(format="%", tickCount=ticks)
    return alt.Y(f"{field}:Q", title=title, axis=axis, **options)
