"""Gain of policies by concurrency."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from specmargin.show.figures.figure import Figure, Row, columns
from specmargin.show.figures.marks import Plane, by_name, by_powers, dashed, layers, tips
from specmargin.show.figures.theme import POLICIES

# The policy of each name, and a dash pattern that distinguishes policies without colour.
SHOWN = {
    "ours": ("gate", [1, 0]),
    "vLLM adaptive verification": ("vllm-adaptive", [6, 2]),
    "one-width gate": ("one-width", [3, 2]),
    "SGLang ladder": ("sglang", [8, 3, 2, 3]),
    "TurboSpec": ("turbospec", [2, 2]),
    "oracle": ("oracle", [1, 3]),
}
_NAMES = {"ours": "Specmargin's gate"}  # where the figure calls a policy by another name than its rows
_LOWEST, _HIGHEST = -0.4, 0.65
_COLUMNS = 2


def ladder_figure(rows: Sequence[Row], *, source: str = "Specmargin; a bank of draft rounds") -> Figure:
    """One panel per set of `prices`; zero is the best fixed depth in hindsight."""
    titles = tuple(dict.fromkeys(str(row["prices"]) for row in rows))
    drawn = [row for row in rows if row["policy"] in SHOWN]
    own = [row for row in rows if row["prices"] == titles[0] and row["policy"] == "ours"]
    first, last = own[0], own[-1]
    lost = any(row["gain"] < _LOWEST for row in drawn)
    return Figure(
        name="ladder",
        title="Gain of policies over the best fixed depth",
        takeaway=(
            f"{titles[0]}: the gate of Specmargin gains {first['gain']:+.1%} at {first['concurrency']} and "
            f"{last['gain']:+.1%} at {last['concurrency']} sequences over the best fixed depth in hindsight. "
            f"Every policy replays the same batches of a bank."
            f"{f' Losses beyond {-_LOWEST:.0%} are drawn at {-_LOWEST:.0%}.' if lost else ''}"
        ),
        source=f"{source}, fitted on half of its requests and replayed on the other half",
        tables={
            "gains": columns(
                concurrency=[row["concurrency"] for row in drawn],
                gain=[min(max(float(row["gain"]), _LOWEST), _HIGHEST) for row in drawn],
                policy=[_NAMES.get(row["policy"], row["policy"]) for row in drawn],
                prices=[row["prices"] for row in drawn],
            ),
            "zero": [{"gain": 0.0}],
        },
        draw=_draw,
        shape=(titles,),
    )


def _draw(titles: tuple[str, ...]) -> alt.ConcatChart | alt.LayerChart:
    if len(titles) == 1:
        return _panel(titles[0])
    panels = [_panel(title).properties(width=330, height=220, title=_heading(title)) for title in titles]
    shared = alt.Resolve(scale=alt.ScaleResolveMap(y="shared"))
    return alt.ConcatChart(concat=panels, columns=_COLUMNS, resolve=shared)


def _panel(title: str) -> alt.LayerChart:
    shown = {_NAMES.get(name, name): style for name, style in SHOWN.items()}
    name_of = {policy: name for name, (policy, _) in shown.items()}
    domain = [name_of.get(policy, policy) for policy in POLICIES]  # a policy's place is its colour
    y = alt.Y("gain:Q", axis=alt.Axis(format="+%"), title="goodput over the best fixed depth")
    on = Plane(by_powers("concurrency", "sequences decoding together", 11), y)
    legend = alt.Legend(title=None, orient="bottom", columns=3, symbolType="stroke", symbolSize=260, values=list(shown))
    colour = by_name("policy", domain, legend)
    dash = dashed("policy", {name: shown[name][1] if name in shown else [1, 0] for name in domain}, legend)
    tooltip = tips("policy:N", "concurrency:Q", "gain:Q||+.1%")
    lines = on.traced("gains", color=colour, strokeDash=dash, size=20, tooltip=tooltip)
    own = [mark.transform_filter(f"datum.prices === {_quoted(title)}") for mark in lines]
    return layers(on.level("zero"), own)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _heading(title: str) -> alt.TitleParams:
    head, _, tail = title.partition(", ")
    return alt.TitleParams([head, tail] if tail else [head], fontSize=11, fontWeight="normal", offset=8)
