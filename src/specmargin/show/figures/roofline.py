"""Arithmetic intensity of a feed-forward layer: why extra tokens are free on a dense model but not on an MoE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from specmargin.architecture.types import ExpertPool, Matrix, total_bytes
from specmargin.decisions.scenario import Scenario
from specmargin.show.figures.figure import Figure, columns, end_labels
from specmargin.show.figures.marks import LOG2, Plane, area_between, by_name, by_powers, dashed, layers, tips, y_at
from specmargin.show.figures.words import short
from specmargin.step import FloatArray, Step

_TOKENS = 2.0 ** np.arange(0, 15.01, 0.25)
_TENS = alt.Axis(values=[10**power for power in range(-2, 8)], format=",~g")  # no grid lines between
_COVERED = 0.95  # of the experts: beyond it an MoE layer reads nearly all its weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """FLOPs per byte of one layer's feed-forward part by positions per step, and the ridge of the device."""

    positions: FloatArray
    dense: FloatArray
    mixture: FloatArray | None
    ridge: float  # FLOPs per byte at which the device is balanced, in the arithmetic of these weights
    arithmetic: str
    covered_positions: float | None  # at which nearly all experts are touched

    @property
    def dense_knee(self) -> float:
        return crossing(self.positions, self.dense, self.ridge)

    @property
    def mixture_knee(self) -> float | None:
        return None if self.mixture is None else crossing(self.positions, self.mixture, self.ridge)


def crossing(positions: FloatArray, intensity: FloatArray, ridge: float) -> float:
    """Positions at which the intensity reaches the ridge; extrapolated in proportion beyond the last point."""
    if intensity[-1] < ridge:
        return float(positions[-1] * ridge / intensity[-1])
    return float(np.exp(np.interp(np.log(ridge), np.log(intensity), np.log(positions))))


def intensity(scenario: Scenario) -> Intensity:
    """Of an MoE layer with its always-on matrices, or of a dense feed-forward layer."""
    groups = scenario.architecture.expert_groups
    if not groups:
        dense = next(group.layer.dense for group in scenario.architecture.groups if group.layer.dense)
        return _intensity(scenario, expert=(), always=dense, pool=None)
    block = groups[0][1]
    return _intensity(scenario, expert=block.expert, always=block.always_on, pool=block.pool)


def _intensity(
    scenario: Scenario, *, expert: tuple[Matrix, ...], always: tuple[Matrix, ...], pool: ExpertPool | None
) -> Intensity:
    k = 0 if pool is None else pool.experts_per_token
    flops = k * sum(m.flops_per_position() for m in expert) + sum(m.flops_per_position() for m in always)
    expert_bytes, always_bytes = total_bytes(expert), total_bytes(always)
    arithmetic = (expert or always)[0].precision.arithmetic
    mixture, covered = None, None
    if pool is not None:
        distinct = scenario.routing.mean(pool, Step.uniform(batch=_TOKENS))
        mixture = _TOKENS * flops / (distinct * expert_bytes + always_bytes)
        covered = next(iter(_TOKENS[distinct >= _COVERED * pool.experts].tolist()), None)
    return Intensity(
        positions=_TOKENS,
        dense=_TOKENS * flops / (k * expert_bytes + always_bytes),
        mixture=mixture,
        ridge=scenario.device.rate(arithmetic) / scenario.device.bandwidth_bytes_per_second,
        arithmetic=str(arithmetic),
        covered_positions=covered,
    )


def roofline_figure(scenario: Scenario, *, batch: int) -> Figure:
    layer = intensity(scenario)
    dense = {"dense" if layer.mixture is None else "dense, same size": layer.dense}
    lines = dense if layer.mixture is None else dense | {"mixture of experts": layer.mixture}
    rows = [
        row
        for series, values in lines.items()
        for row in columns(positions=layer.positions, intensity=values, series=series)
    ]
    ends = {series: (float(_TOKENS[-1]), float(values[-1])) for series, values in lines.items()}
    return Figure(
        name="roofline",
        title="Arithmetic intensity by positions",
        takeaway=_takeaway(scenario, layer),
        source=f"Specmargin; {short(scenario.device.source, 70)}; shapes {short(scenario.architecture.source, 90)}",
        tables={
            "lines": rows,
            "labels": end_labels(ends, x="positions", y="intensity", gap=0.9, log=True),
            "ridge": columns(
                intensity=[layer.ridge],
                positions=1.0,
                text=f"{scenario.device.name}: {layer.ridge:,.0f} FLOPs/byte ({layer.arithmetic})",
            ),
            "knees": _knees(layer),
            "bands": _bands(layer),
            "here": [{"positions": batch}],
        },
        draw=_draw,
        shape=(tuple(lines),),
    )


def _knees(layer: Intensity) -> list[dict[str, Any]]:
    both = (layer.dense_knee, layer.mixture_knee)
    knees = [knee for knee in both if knee is not None and knee <= _TOKENS[-1]]
    return columns(positions=knees, intensity=layer.ridge, text=[f"{knee:,.0f}" for knee in knees])


def _bands(layer: Intensity) -> list[dict[str, Any]]:
    last = float(_TOKENS[-1])
    if layer.mixture_knee is None:
        return [{"from": 1.0, "to": min(layer.dense_knee, last), "kind": "free", "text": "free tokens"}]
    covered = layer.covered_positions or last
    bands = [{"from": 1.0, "to": covered, "kind": "tax", "text": "each token reads more experts"}]
    if layer.mixture_knee > covered:
        bands.append({"from": covered, "to": min(layer.mixture_knee, last), "kind": "free", "text": "free tokens"})
    return bands


def _takeaway(scenario: Scenario, layer: Intensity) -> str:
    name = scenario.architecture.name
    dense = f"{layer.dense_knee:,.0f} positions"
    if layer.mixture_knee is None or layer.mixture is None:
        return (
            f"{name} is dense: up to {dense} per step its feed-forward layers are memory-bound on a "
            f"{scenario.device.name}, so extra draft tokens add no time."
        )
    covered = (
        f"until about {layer.covered_positions:,.0f} positions touch 95% of the experts"
        if layer.covered_positions
        else "at every batch shown"
    )
    return (
        f"A dense layer of {name}'s active size would be memory-bound up to {dense}; the MoE layer reads "
        f"more experts per token {covered}, and is memory-bound up to {layer.mixture_knee:,.0f} "
        "positions, where extra tokens are free (shaded right)."
    )


def _draw(names: tuple[str, ...]) -> alt.LayerChart:
    title = "positions per step"
    y = alt.Y("intensity:Q", title="FLOPs per byte read", scale=alt.Scale(type="log", nice=False), axis=_TENS)
    on = Plane(by_powers("positions", title, 16), y)
    colour = by_name("series", names)
    start, middle = (alt.X(f"{field}:Q", scale=LOG2, title=title) for field in ("from", "middle"))
    bands = [
        area_between("bands", start, "to:Q", style).transform_filter(f"datum.kind == '{kind}'")
        for kind, style in (("tax", "tax-band"), ("free", "band"))
    ]
    band_names = Plane(middle, y_at(6)).text("bands", style="aside", baseline="top")
    return layers(
        bands,
        band_names.transform_calculate(middle="sqrt(datum.from * datum.to)"),
        on.level("ridge"),
        on.at("here").encode(y=y_at(24), y2=alt.value("height")),
        on.haloed("ridge", style="aside", align="left", dx=6, dy=-9),
        on.line("lines", color=colour, strokeDash=dashed("series", dict(zip(names, ([5, 3], [1, 0]), strict=False)))),
        on.points("knees", size=70, shape="diamond", tooltip=tips("text:N")),
        on.text("knees", dy=16, fontWeight=600),
        on.text("labels", "series:N", style="label", color=colour),
    )
