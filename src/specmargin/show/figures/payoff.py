"""Where speculation pays: speed-up and depth by batch and context, and goodput against time between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from specmargin.decisions.plan import Plan
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.show.figures.curve import MAP_BATCHES, Curve, curve, limit_marks, limit_rows
from specmargin.show.figures.figure import Figure, columns
from specmargin.show.figures.marks import BATCH, Plane, batch_axis, by_name, layers, ordinal, tips, x_at, y_at
from specmargin.show.figures.theme import DRAFTERS, drafter_colour
from specmargin.show.figures.words import described, machine, price_source
from specmargin.step import FloatArray

CONTEXTS = (512, 2048, 8192, 32_768, 131_072, 524_288)
_LABEL_OCTAVES = 0.5  # of the batch axis, which a label is wide


# --- over batch ---


def speedup_figure(pricer: Pricer, setting: Setting, *, batch: int) -> Figure:
    """Depth and speed-up by batch, with every fixed depth as a thin line and a mark at `batch`."""
    shown = curve(pricer, setting)
    gains, at = shown.fixed_speedup, shown.shown
    fixed = [
        row
        for depth in range(1, gains.shape[1])
        for row in columns(batch=shown.batches, speedup=gains[:, depth], depth=depth)
        if np.isfinite(row["speedup"])
    ]
    best = columns(
        batch=np.array(shown.batches)[at],
        speedup=shown.speedup[at],
        depth=shown.depths[at],
        text=[_depth(int(shown.depths[i])) if shown.batches[i] in MAP_BATCHES else "" for i in at],
        colour=drafter_colour(pricer.scenario.drafter.name),
    )
    return Figure(
        name="speedup",
        title="Draft depth and speed-up by batch",
        takeaway=_speedup_takeaway(pricer.scenario, shown, batch),
        source=price_source(pricer),
        tables={
            "best": best,
            "fixed": fixed,
            "fixed_labels": _fixed_labels(fixed),
            "even": [{"speedup": 1.0}],
            "here": [{"batch": batch}] if batch <= shown.batches[-1] else [],
            "heading": [{"text": "draft"}],
            "limit": limit_rows(shown, setting),
        },
        draw=_draw_speedup,
    )


def _depth(tokens: int) -> str:
    return str(tokens) if tokens else "off"


def _fixed_labels(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The depth of each thin line, beside its last batch; of those that would touch, the shallowest and the deepest."""
    ends: dict[int, tuple[float, float]] = {row["depth"]: (row["batch"], row["speedup"]) for row in rows}
    speedups = [float(row["speedup"]) for row in rows]
    gap = 0.06 * max(max(speedups, default=1.0) - min([*speedups, 1.0]), 0.1)  # the axis includes 1
    kept: dict[int, tuple[float, float]] = {}
    for depth in sorted(ends, key=lambda depth: (depth not in (min(ends), max(ends)), depth)):
        batch, speedup = ends[depth]
        near = [other for other in kept.values() if abs(np.log2(other[0] / batch)) < _LABEL_OCTAVES]
        if all(abs(other[1] - speedup) >= gap for other in near):
            kept[depth] = (batch, speedup)
    return [{"batch": at[0], "speedup": at[1], "series": str(depth)} for depth, at in sorted(kept.items())]


def _speedup_takeaway(scenario: Scenario, shown: Curve, marked: int) -> str:
    if not shown.shown:
        return f"{described(scenario)}: no sequence fits in memory with drafts."
    best, batches, depths = shown.speedup, shown.batches, shown.depths
    first, top, last = shown.shown[0], int(np.nanargmax(best)), shown.shown[-1]
    if best[top] <= 1.0:
        return f"{described(scenario)}: no depth pays at any batch."
    ends = f"; at batch {batches[last]} {best[last]:.2f}×" if top != last else ""
    opening = f"{best[first]:.2f}× at batch {batches[first]} with drafts of {depths[first]}"
    most = "" if top == first else f", at most {best[top]:.2f}× at batch {batches[top]} (drafts of {depths[top]})"
    marks = f"Thin lines: one depth at every batch; vertical line: batch {marked:,}."
    return f"{described(scenario)}: {opening}{most}{ends}. {marks}"


def _draw_speedup() -> alt.LayerChart:
    y = alt.Y("speedup:Q", title="speed-up over no speculation (×)", scale=alt.Scale(zero=False))
    on, above = Plane(batch_axis(), y), y_at(-15)
    tooltip = tips("batch:Q", "depth:Q|draft", "speedup:Q|speed-up|.2f")
    return layers(
        limit_marks(),
        on.line("fixed", style="quiet-line", detail=alt.Detail("depth:N")),
        on.level("even"),
        on.at("here"),
        on.traced("best", color=by_name("colour", DRAFTERS), tooltip=tooltip),
        on.haloed("fixed_labels", "series:N", style="note", align="left", dx=5),
        Plane(on.x, above).text("best", fontWeight=600),
        Plane(x_at(-15), above).text("heading", style="note", align="right"),
    )


# --- over batch and context ---


def plan_figure(plan: Plan, *, by_context: bool) -> Figure:
    """The figure of a plan: by batch, and with several contexts by context."""
    if by_context:
        return context_figure(plan.pricer, plan.setting)
    return speedup_figure(plan.pricer, plan.setting, batch=plan.best.batch)


def context_figure(pricer: Pricer, setting: Setting) -> Figure:
    """Speed-up and depth by batch and context; empty where the sequences do not fit in memory."""
    longest = pricer.scenario.architecture.max_context or CONTEXTS[-1]
    contexts = [tokens for tokens in CONTEXTS if tokens <= longest] or [longest]
    batches = np.tile(np.array(MAP_BATCHES, dtype=np.float64), len(contexts))
    context_by_cell = np.repeat(np.array(contexts, dtype=np.float64), len(MAP_BATCHES))
    grid = pricer.grid(batches, setting.max_depth, context_by_cell)
    chosen, gain = setting.depths(grid), setting.goodput(grid) / grid.no_spec_goodput
    largest = {tokens: _largest(pricer, tokens, setting) for tokens in contexts}
    fits = np.array([size <= largest[int(tokens)] for size, tokens in zip(batches, context_by_cell, strict=True)])
    low, high = _extent(gain[fits])
    cells = columns(
        batch=batches[fits].astype(int),
        context=context_by_cell[fits].astype(int),
        label=[_short(int(tokens)) for tokens in context_by_cell[fits]],
        speedup=gain[fits],
        depth=chosen[fits],
        text=[f"{value:.2f}" if depth else "–" for value, depth in zip(gain[fits], chosen[fits], strict=True)],
        high=gain[fits] > low + _DARK * (high - low),
    )
    return Figure(
        name="context",
        title="Speed-up by batch and context",
        takeaway=_context_takeaway(pricer.scenario, cells, setting),
        source=price_source(pricer),
        tables={"cells": cells, "ends": columns(speedup=[low, high])},
        draw=_draw_context,
        shape=(tuple(map(_short, contexts)),),
    )


_DARK = 0.62  # of the colour scale: above it, cells are dark enough for light text
_STEPS = 5.0  # steps of a fifth at the ends of the scale, so that most changes of a control keep its colours


def _extent(gain: FloatArray) -> tuple[float, float]:
    """The ends of the colour scale: just outside the data, and 0.4 apart at least."""
    if gain.size == 0:
        return 1.0, 2.0
    low, high = np.floor(gain.min() * _STEPS) / _STEPS, np.ceil(gain.max() * _STEPS) / _STEPS
    return float(low), float(max(high, low + 0.4))


def _largest(pricer: Pricer, tokens: int, setting: Setting) -> int:
    there, schedule = pricer.with_context(float(tokens)), setting.schedule
    return there.no_spec_largest_batch if schedule is None else setting.largest_batch(there, schedule.max_depth)


def _context_takeaway(scenario: Scenario, rows: Sequence[dict[str, Any]], setting: Setting) -> str:
    if not rows:
        return f"{machine(scenario)}: no sequence fits in memory."
    best, worst = (pick(rows, key=lambda row: float(row["speedup"])) for pick in (max, min))
    depth = "at its best depth" if setting.schedule is None else "with the flags"
    return (
        f"{machine(scenario)}: from {worst['speedup']:.2f}× (batch {worst['batch']}, {worst['context']:,} tokens) to "
        f"{best['speedup']:.2f}× (batch {best['batch']}, {best['context']:,} tokens), each {depth}. "
        "Dash: no drafting. Empty: does not fit in memory."
    )


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def _draw_context(contexts: tuple[str, ...]) -> alt.LayerChart:
    y = alt.Y("label:O", title="tokens in the cache", scale=alt.Scale(domain=list(contexts)))
    on = Plane(ordinal("batch", BATCH), y)
    colour = alt.Color(
        "speedup:Q",
        scale=alt.Scale(range="heatmap", interpolate="lab", zero=False, nice=False),
        legend=alt.Legend(title="speed-up", gradientLength=160, format=".1f", tickCount=4),
    )
    tooltip = tips("batch:O", "context:O", "speedup:Q||.2f", "depth:Q|draft")
    # Unseen: only the ends of the colour scale. They have no batch, which an axis would name "undefined".
    ends = Plane(x_at(0), y_at(0)).points("ends", opacity=0, color=colour)
    return layers(on.cells(colour, tooltip=tooltip), ends)


# --- against the time between tokens ---

_SIZES = (1, 4, 16, 64, 256)  # batches that are written beside their points


def _log(padding: int) -> alt.Scale:
    return alt.Scale(type="log", nice=False, padding=padding)
