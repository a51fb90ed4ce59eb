"""Arithmetic intensity of a feed-forward layer: why extra tokens are free on a dense model but not on an MoE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from specmargin.architecture.types import ExpertBlock, Matrix, total_bytes
from specmargin.decisions.scenario import Scenario
from specmargin.show.figures.figure import Figure, end_labels, powers, rounded, table, y_at
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
        return _dense_intensity(scenario, dense)
    return _moe_intensity(scenario, groups[0][1])


def _ridge(scenario: Scenario, matrices: tuple[Matrix, ...]) -> tuple[float, str]:
    arithmetic = matrices[0].precision.arithmetic
    device = scenario.device
    return device.rate(arithmetic) / device.bandwidth_bytes_per_second, str(arithmetic)


def _dense_intensity(scenario: Scenario, matrices: tuple[Matrix, ...]) -> Intensity:
    flops = sum(matrix.flops_per_position() for matrix in matrices)
    ridge, arithmetic = _ridge(scenario, matrices)
    return Intensity(
        positions=_TOKENS,
        dense=_TOKENS * flops / total_bytes(matrices),
        mixture=None,
        ridge=ridge,
        arithmetic=arithmetic,
        covered_positions=None,
    )


def _moe_intensity(scenario: Scenario, block: ExpertBlock) -> Intensity:
    pool = block.pool
    shared = tuple(matrix for matrix in block.always_on)
    flops = pool.experts_per_token * sum(m.flops_per_position() for m in block.expert)
    flops += sum(m.flops_per_position() for m in shared)
    expert_bytes, shared_bytes = total_bytes(block.expert), total_bytes(shared)
    distinct = scenario.routing.mean(pool, Step.uniform(batch=_TOKENS))
    ridge, arithmetic = _ridge(scenario, block.expert)
    covered = distinct >= _COVERED * pool.experts
    return Intensity(
        positions=_TOKENS,
        dense=_TOKENS * flops / (pool.experts_per_token * expert_bytes + shared_bytes),
        mixture=_TOKENS * flops / (distinct * expert_bytes + shared_bytes),
        ridge=ridge,
        arithmetic=arithmetic,
        covered_positions=float(_TOKENS[covered.argmax()]) if covered.any() else None,
    )


def roofline_figure(scenario: Scenario, *, batch: int) -> Figure:
    layer = intensity(scenario)
    name = scenario.architecture.name
    lines = {"dense, same size": layer.dense}
    if layer.mixture is not None:
        lines["mixture of experts"] = layer.mixture
    else:
        lines = {"dense": layer.dense}
    rows = [
        {"positions": rounded(x, 5), "intensity": rounded(values[i]), "series": series}
        for series, values in lines.items()
        for i, x in enumerate(layer.positions)
    ]
    ends = {series: (float(_TOKENS[-1]), float(values[-1])) for series, values in lines.items()}
    return Figure(
        name="roofline",
        title="Arithmetic intensity by positions",
        takeaway=_takeaway(name, scenario, layer),
        source=f"Specmargin; {short(scenario.device.source, 70)}; shapes {short(scenario.architecture.source, 90)}",
        tables={
            "lines": rows,
            "labels": end_labels(ends, x="positions", y="intensity", gap=0.9, log=True),
            "ridge": [
                {
                    "intensity": rounded(layer.ridge),
                    "positions": 1.0,
                    "text": f"{scenario.device.name}: {layer.ridge:,.0f} FLOPs/byte ({layer.arithmetic})",
                }
            ],
            "knees": _knees(layer),
            "bands": _bands(layer),
            "here": [{"positions": batch}],
        },
        draw=_draw,
        shape=(tuple(lines),),
    )


def _knees(layer: Intensity) -> list[dict[str, Any]]:
    knees = {"dense": layer.dense_knee} | ({} if layer.mixture_knee is None else {"mixture": layer.mixture_knee})
    return [
        {"positions": rounded(knee), "intensity": rounded(layer.ridge), "text": f"{knee:,.0f}"}
        for knee in knees.values()
        if knee <= _TOKENS[-1]
    ]


def _bands(layer: Intensity) -> list[dict[str, Any]]:
    last = float(_TOKENS[-1])
    if layer.mixture_knee is None:
        return [{"from": 1.0, "to": min(layer.dense_knee, last), "kind": "free", "text": "free tokens"}]
    covered = layer.covered_positions or last
    bands = [{"from": 1.0, "to": covered, "kind": "tax", "text": "each token reads more experts"}]
    if layer.mixture_knee > covered:
        bands.append({"from": covered, "to": min(layer.mixture_knee, last), "kind": "free", "text": "free tokens"})
    return bands


def _takeaway(name: str, scenario: Scenario, layer: Intensity) -> str:
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
    scale = alt.Scale(type="log", base=2, nice=False)
    x = alt.X("positions:Q", title="positions per step", scale=scale, axis=powers(16))
    y = alt.Y("intensity:Q", title="FLOPs per byte read", scale=alt.Scale(type="log", nice=False), axis=_TENS)
    colour = alt.Color("series:N", scale=alt.Scale(domain=list(names)), legend=None)
    dash = alt.StrokeDash(
        "series:N", scale=alt.Scale(domain=list(names), range=[[5, 3], [1, 0]][: len(names)]), legend=None
    )
    bands = [
        table("bands")
        .transform_filter(f"datum.kind == '{kind}'")
        .mark_rect(style=style, stroke=None)
        .encode(x=alt.X("from:Q", scale=scale, title="positions per step"), x2=alt.X2("to:Q"))
        for kind, style in (("tax", "tax-band"), ("free", "band"))
    ]
    names_of_bands = (
        table("bands")
        .transform_calculate(middle="sqrt(datum.from * datum.to)")
        .mark_text(style="band-label", baseline="top")
        .encode(x=alt.X("middle:Q", scale=scale, title="positions per step"), y=y_at(6), text=alt.Text("text:N"))
    )
    ridge = table("ridge").mark_rule(style="reference").encode(y=y)
    ridge_labels = [
        table("ridge").mark_text(style=style, align="left", dx=6, dy=-9).encode(x=x, y=y, text=alt.Text("text:N"))
        for style in ("ridge-halo", "ridge-label")
    ]
    lines = table("lines").mark_line().encode(x=x, y=y, color=colour, strokeDash=dash)
    knees = table("knees").mark_point(size=70, shape="diamond").encode(x=x, y=y, tooltip=[alt.Tooltip("text:N")])
    knee_labels = table("knees").mark_text(dy=16, fontWeight=600).encode(x=x, y=y, text=alt.Text("text:N"))
    here = table("here").mark_rule(style="marker").encode(x=x, y=y_at(24), y2=alt.value("height"))
    labels = table("labels").mark_text(style="label").encode(x=x, y=y, text=alt.Text("series:N"), color=colour)
    return alt.LayerChart(layer=[*bands, names_of_bands, ridge, here, *ridge_labels, lines, knees, knee_labels, labels])
