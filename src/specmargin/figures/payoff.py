"""Where speculation pays: speed-up and depth by batch and context, and goodput against time between tokens."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from specmargin.decisions.grid import Grid, allowed_depths, best_depths
from specmargin.decisions.plan import Plan, deepest
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import fitting_batch, setting_depths, setting_goodput
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.schedule import Schedule
from specmargin.figures.figure import Figure, batch_axis, end_labels, rounded, table
from specmargin.figures.words import machine, price_source, setting
from specmargin.step import FloatArray, IntArray

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CONTEXTS = (512, 2048, 8192, 32_768, 131_072, 524_288)
MAP_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def fitting(pricer: Pricer, batches: Sequence[int]) -> list[int]:
    """The batches that fit without speculation; at least two, so that there is a line to draw."""
    fit = [batch for batch in batches if batch <= pricer.no_spec_largest_batch]
    return fit if len(fit) > 1 else list(batches[:2])


def _setting(
    pricer: Pricer, max_depth: int, graph_limit: int | None, schedule: Schedule | None
) -> tuple[list[int], Grid, IntArray]:
    """The batches that fit, their grid, and the schedule's depths; without one, the best depth of those that fit."""
    batches = fitting(pricer, BATCHES)
    if schedule is not None:
        largest = fitting_batch(pricer, schedule.max_depth, schedule)
        batches = [batch for i, batch in enumerate(batches) if batch <= largest or i < 2]
    grid = pricer.grid(batches, deepest(pricer.scenario, max_depth))
    if schedule is not None:
        return batches, grid, schedule.depths_at(grid.batches)
    chosen = best_depths(grid, graph_limit)
    fits = {depth: pricer.largest_batch(depth) for depth in set(chosen.tolist())}
    depths = [depth if size <= fits[depth] else 0 for size, depth in zip(batches, chosen.tolist(), strict=True)]
    return batches, grid, np.array(depths)


# --- over batch ---


def speedup_figure(
    pricer: Pricer,
    *,
    batch: int,
    max_depth: int = 8,
    graph_limit: int | None = None,
    schedule: Schedule | None = None,
) -> Figure:
    """Depth and speed-up by batch, with every fixed depth as a thin line and a mark at `batch`.

    Without a schedule, the best depth at each batch.
    """
    batches, grid, chosen = _setting(pricer, max_depth, graph_limit, schedule)
    gains = np.where(allowed_depths(grid, graph_limit), grid.goodput, np.nan) / grid.no_spec_goodput[:, np.newaxis]
    best = setting_goodput(grid, chosen, schedule) / grid.no_spec_goodput
    fixed = [
        {"batch": size, "speedup": rounded(gains[i, depth]), "depth": depth}
        for depth in range(1, gains.shape[1])
        for i, size in enumerate(batches)
        if np.isfinite(gains[i, depth])
    ]
    rows = [
        {
            "batch": size,
            "speedup": rounded(best[i]),
            "depth": int(chosen[i]),
            "text": (str(chosen[i]) if chosen[i] else "off") if size in MAP_BATCHES else "",
        }
        for i, size in enumerate(batches)
    ]
    return Figure(
        name="speedup",
        title="Draft depth and speed-up by batch",
        takeaway=_speedup_takeaway(pricer.scenario, batches, best, chosen),
        source=price_source(pricer),
        tables={
            "best": rows,
            "fixed": fixed,
            "even": [{"speedup": 1.0}],
            "here": [{"batch": batch}] if batch <= batches[-1] else [],
            "heading": [{"text": "draft"}],
        },
        draw=_draw_speedup,
    )


def _speedup_takeaway(scenario: Scenario, batches: Sequence[int], best: FloatArray, chosen: IntArray) -> str:
    top = int(np.nanargmax(best))
    if best[top] <= 1.0:
        return f"{setting(scenario)}: no depth pays at any batch."
    ends = f"; at batch {batches[-1]} {best[-1]:.2f}×" if top != len(batches) - 1 else ""
    first = f"{best[0]:.2f}× at batch {batches[0]} with drafts of {chosen[0]}"
    most = "" if top == 0 else f", at most {best[top]:.2f}× at batch {batches[top]} (drafts of {chosen[top]})"
    return f"{setting(scenario)}: {first}{most}{ends}. Thin lines: the same depth at every batch."


def _draw_speedup() -> alt.LayerChart:
    x, y = batch_axis(), alt.Y("speedup:Q", title="speed-up over no speculation (×)", scale=alt.Scale(zero=False))
    tooltip = [
        alt.Tooltip("batch:Q", title="batch"),
        alt.Tooltip("depth:Q", title="draft"),
        alt.Tooltip("speedup:Q", title="speed-up", format=".2f"),
    ]
    fixed = table("fixed").mark_line(style="quiet-line").encode(x=x, y=y, detail="depth:N")
    even = table("even").mark_rule(style="reference").encode(y=y)
    here = table("here").mark_rule(style="marker").encode(x=x)
    line = table("best").mark_line().encode(x=x, y=y)
    points = table("best").mark_point().encode(x=x, y=y, tooltip=tooltip)
    depths = table("best").mark_text(fontWeight=600).encode(x=x, y=alt.value(-15), text="text:N")
    heading = (
        table("heading")
        .mark_text(style="note", align="right")
        .encode(x=alt.value(-15), y=alt.value(-15), text="text:N")
    )
    return alt.LayerChart(layer=[fixed, even, here, line, points, depths, heading])


# --- over batch and context ---


def plan_figure(plan: Plan, *, by_context: bool) -> Figure:
    """The figure of a plan: by batch, and with several contexts by context."""
    depth, limit, schedule = plan.max_depth, plan.graph_limit, plan.schedule
    if by_context:
        return context_figure(plan.pricer, max_depth=depth, graph_limit=limit, schedule=schedule)
    batch = plan.best.batch
    return speedup_figure(plan.pricer, batch=batch, max_depth=depth, graph_limit=limit, schedule=schedule)


def context_figure(
    pricer: Pricer, *, max_depth: int = 8, graph_limit: int | None = None, schedule: Schedule | None = None
) -> Figure:
    """Speed-up and depth by batch and context; empty where the sequences do not fit in memory."""
    longest = pricer.scenario.architecture.max_context or CONTEXTS[-1]
    contexts = [tokens for tokens in CONTEXTS if tokens <= longest] or [longest]
    deep = deepest(pricer.scenario, max_depth)
    batches = np.tile(np.array(MAP_BATCHES, dtype=np.float64), len(contexts))
    context_by_cell = np.repeat(np.array(contexts, dtype=np.float64), len(MAP_BATCHES))
    grid = pricer.grid(batches, deep, context_by_cell)
    chosen = setting_depths(grid, graph_limit, schedule)
    gain = setting_goodput(grid, chosen, schedule) / grid.no_spec_goodput
    largest = {tokens: _largest(pricer, tokens, schedule) for tokens in contexts}
    rows = [
        {
            "batch": int(size),
            "context": int(tokens),
            "label": _short(int(tokens)),
            "speedup": rounded(value),
            "depth": int(depth),
            "text": f"{value:.2f}" if depth else "–",
            "high": bool(value > _HIGH),
        }
        for size, tokens, depth, value in zip(batches, context_by_cell, chosen, gain, strict=True)
        if size <= largest[int(tokens)]
    ]
    return Figure(
        name="context",
        title="Speed-up by batch and context",
        takeaway=_context_takeaway(pricer.scenario, rows, "with the flags" if schedule else "at its best depth"),
        source=price_source(pricer),
        tables={"cells": rows},
        draw=_draw_context,
        shape=(tuple(map(_short, contexts)),),
    )


_HIGH = 1.93  # speed-up above which cells are dark enough for light text


def _largest(pricer: Pricer, tokens: int, schedule: Schedule | None) -> int:
    there = pricer.with_context(float(tokens))
    return there.no_spec_largest_batch if schedule is None else fitting_batch(there, schedule.max_depth, schedule)


def _context_takeaway(scenario: Scenario, rows: Sequence[dict[str, object]], depth: str) -> str:
    if not rows:
        return f"{machine(scenario)}: no sequence fits in memory."
    best, worst = max(rows, key=_speedup_of), min(rows, key=_speedup_of)
    return (
        f"{machine(scenario)}: from {_speedup_of(worst):.2f}× (batch {worst['batch']}, {worst['context']:,} tokens) to "
        f"{_speedup_of(best):.2f}× (batch {best['batch']}, {best['context']:,} tokens), each {depth}. "
        "Dash: no drafting. Empty: does not fit in memory."
    )


def _speedup_of(row: dict[str, object]) -> float:
    return float(str(row["speedup"]))


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def _draw_context(contexts: tuple[str, ...]) -> alt.LayerChart:
    x = alt.X("batch:O", title="sequences decoding together (batch)", axis=alt.Axis(labelAngle=0))
    y = alt.Y("label:O", title="tokens in the cache", scale=alt.Scale(domain=list(contexts)), axis=alt.Axis(grid=False))
    colour = alt.Color(
        "speedup:Q",
        scale=alt.Scale(range="heatmap", interpolate="lab", domain=[1.0, 2.5], clamp=True),
        legend=alt.Legend(title="speed-up", gradientLength=160, format=".1f", values=[1.0, 1.5, 2.0, 2.5]),
    )
    tooltip = ["batch:O", "context:O", alt.Tooltip("speedup:Q", format=".2f"), alt.Tooltip("depth:Q", title="draft")]
    cells = table("cells").mark_rect().encode(x=x, y=y, color=colour, tooltip=tooltip)
    low = table("cells").transform_filter("!datum.high").mark_text(style="cell-low").encode(x=x, y=y, text="text:N")
    high = table("cells").transform_filter("datum.high").mark_text(style="cell-high").encode(x=x, y=y, text="text:N")
    return alt.LayerChart(layer=[cells, low, high])


# --- against the time between tokens ---


def pareto_figure(
    pricer: Pricer, *, max_depth: int = 8, graph_limit: int | None = None, schedule: Schedule | None = None
) -> Figure:
    """Goodput per GPU against the speed of one sequence, with and without speculation, one point per batch."""
    batches, grid, chosen = _setting(pricer, max_depth, graph_limit, schedule)
    goodput_of_setting = setting_goodput(grid, chosen, schedule)
    gpus = pricer.scenario.layout.gpus
    sides = {
        "no speculation": (grid.no_spec_goodput / gpus, grid.no_spec_seconds),
        f"with {pricer.scenario.drafter.name}": (
            goodput_of_setting / gpus,
            grid.batches / goodput_of_setting,
        ),
    }
    rows = [
        {
            "goodput": rounded(goodput[i]),
            "speed": rounded(1.0 / tpot[i]),
            "tpot": rounded(tpot[i] * 1e3),
            "batch": size,
            "series": name,
        }
        for name, (goodput, tpot) in sides.items()
        for i, size in enumerate(batches)
    ]
    shown = {1, 4, 16, 64, 256}
    ends = {name: (rounded(1.0 / tpot[0]), rounded(goodput[0])) for name, (goodput, tpot) in sides.items()}
    return Figure(
        name="pareto",
        title="Goodput against the speed of one sequence",
        takeaway=_pareto_takeaway(pricer.scenario, sides),
        source=price_source(pricer),
        tables={
            "points": rows,
            "sizes": [row | {"text": f"{row['batch']}"} for row in rows if row["batch"] in shown],
            "labels": end_labels(ends, x="speed", y="goodput", gap=0.55, log=True),
        },
        draw=_draw_pareto,
        shape=(tuple(sides),),
    )


def _pareto_takeaway(scenario: Scenario, sides: dict[str, tuple[FloatArray, FloatArray]]) -> str:
    (no_spec, no_spec_tpot), (fast, fast_tpot) = sides.values()
    middle = len(no_spec) // 2
    wanted = 1.0 / no_spec_tpot[middle]  # tokens per second of one user without speculation, at the middle batch
    reached = float(np.interp(-wanted, -1.0 / fast_tpot, fast))
    return (
        f"{setting(scenario)}: at {wanted:.0f} tokens/s per user a GPU serves {no_spec[middle]:,.0f} tokens/s "
        f"without speculation and {reached:,.0f} with it. Numbers beside points: batch."
    )


def _draw_pareto(names: tuple[str, ...]) -> alt.LayerChart:
    x = alt.X(
        "speed:Q",
        title="tokens/s per sequence (1 / TPOT)",
        scale=alt.Scale(type="log", nice=False, padding=14),
    )
    y = alt.Y("goodput:Q", title="committed tokens/s per GPU", scale=alt.Scale(type="log", nice=False, padding=16))
    colour = alt.Color("series:N", scale=alt.Scale(domain=list(names)), legend=None)
    dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=list(names), range=[[5, 3], [1, 0]]), legend=None)
    tooltip = [
        alt.Tooltip("series:N", title=" "),
        "batch:Q",
        alt.Tooltip("goodput:Q", title="tokens/s/GPU", format=",.0f"),
        alt.Tooltip("tpot:Q", title="ms/token", format=".2f"),
    ]
    lines = table("points").mark_line().encode(x=x, y=y, color=colour, strokeDash=dash, order="batch:Q")
    points = table("points").mark_point().encode(x=x, y=y, color=colour, tooltip=tooltip)
    sizes = table("sizes").mark_text(style="note", dx=-9, dy=7, align="right").encode(x=x, y=y, text="text:N")
    labels = table("labels").mark_text(style="label").encode(x=x, y=y, text="series:N", color=colour)
    return alt.LayerChart(layer=[lines, points, sizes, labels])
