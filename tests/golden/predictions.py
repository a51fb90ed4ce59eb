"""Plans as tables: one row per cell, one per cell and batch, one per whole plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tests.golden.adapters.plans import Planned, PlannedRow, WholePlan, goodput_by_batch_depth, plan_cell
from tests.golden.cells import KEY, Cell
from tests.golden.comparison import Row, Table

FloatArray = npt.NDArray[np.float64]

TIE = 1e-3  # of goodput: rounding decides between depths that are this close
_NAMES = dict.fromkeys(KEY, pl.String())
CELLS: Mapping[str, pl.DataType] = {
    **_NAMES,
    "outcome": pl.String(),
    "gpus": pl.Int64(),
    "drafter": pl.String(),
    "schedule": pl.String(),
    "config": pl.String(),
}
STEPS: Mapping[str, pl.DataType] = {
    **_NAMES,
    "batch": pl.Int64(),
    "verify_us": pl.List(pl.Float64()),  # by depth, from 0 on
    "draft_us": pl.List(pl.Float64()),
    "plain_us": pl.Float64(),
    "best_depth": pl.Int64(),
    "scheduled_depth": pl.Int64(),
    "speedup": pl.Float64(),
    "hurdle": pl.Float64(),
    "break_even": pl.Float64(),
    "distinct_experts": pl.Float64(),
}
PLANS: Mapping[str, pl.DataType] = {
    **_NAMES,
    "schedule": pl.String(),
    "config": pl.String(),
    "scheduled_speedup": pl.List(pl.Float64()),
    "pays_at_batches": pl.String(),
    "pays_without_graph_limit": pl.String(),
    "stops_at_context": pl.Int64(),
    "switch_acceptance": pl.Float64(),
    "largest_batch": pl.Int64(),
    "plain_largest_batch": pl.Int64(),
    "peak_tokens_per_second": pl.Float64(),
    "plain_peak_tokens_per_second": pl.Float64(),
}
SCHEMAS = {"cells": CELLS, "steps": STEPS, "plans": PLANS}
KEYS = {"cells": KEY, "steps": (*KEY, "batch"), "plans": KEY}
AXES = {"verify_us": "depth", "draft_us": "depth", "scheduled_speedup": "row"}
Rows = dict[str, list[dict[str, Any]]]  # by table


def predict(cells: Sequence[Cell]) -> list[Table]:
    rows: Rows = {name: [] for name in SCHEMAS}
    for cell in cells:
        _add(rows, cell)
    return [as_table(name, entries) for name, entries in rows.items()]


def as_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    frame = pl.DataFrame(rows, schema=dict(SCHEMAS[name]), orient="row").sort(KEYS[name])
    return Table(name=name, keys=KEYS[name], frame=frame.with_columns(pl.col(pl.String).fill_null("")), axes=AXES)


def _add(rows: Rows, cell: Cell) -> None:
    key = dict(zip(KEY, cell.key, strict=True))
    planned = plan_cell(cell)
    if not isinstance(planned, Planned):
        rows["cells"].append(key | {"outcome": planned.kind})
        return
    rows["cells"].append(key | {"outcome": "priced"} | _values(planned, "cells"))
    left_out = {} if cell.by_depth else dict.fromkeys(("verify_us", "draft_us"))
    rows["steps"] += [key | _values(row, "steps") | left_out for row in planned.rows]
    if planned.whole is not None:
        rows["plans"].append(key | _values(planned.whole, "plans"))


def _values(planned: Planned | PlannedRow | WholePlan, table: str) -> dict[str, Any]:
    return {name: getattr(planned, name) for name in SCHEMAS[table] if hasattr(planned, name)}


# --- ties ---


def is_tie(column: str, before: Row, after: Row) -> bool:
    """Whether two depths, or the depths of two schedules, give the same goodput now, wherever they differ."""
    key = tuple(before[name] for name in KEY)
    match column:
        case "best_depth" | "scheduled_depth":
            return _are_tied(key, {before["batch"]: (before[column], after[column])})
        case "hurdle" | "break_even" | "distinct_experts":  # of the best depth
            depths = before["best_depth"], after["best_depth"]
            return depths[0] != depths[1] and _are_tied(key, {before["batch"]: depths})
        case "schedule" | "config":
            one, other = (_depths(row["schedule"] or "") for row in (before, after))
            by_batch = dict(enumerate(zip(one, other, strict=False), start=1))
            return one != other and len(one) == len(other) and _are_tied(key, by_batch)
        case _:
            return False


def _are_tied(key: tuple[str, ...], depths_by_batch: Mapping[int, tuple[int, int]]) -> bool:
    differing = {batch: depths for batch, depths in depths_by_batch.items() if depths[0] != depths[1]}
    goodput = _goodput(key)
    priced = all(batch <= len(goodput) for batch in differing)  # a schedule may reach beyond what was priced
    return priced and all(_is_close(goodput[batch - 1], *depths) for batch, depths in differing.items())


@cache
def _goodput(key: tuple[str, ...]) -> FloatArray:
    model, gpu, engine, prices, options = key
    return goodput_by_batch_depth(Cell(model=model, gpu=gpu, engine=engine, prices=prices, options=options))


def _is_close(goodput: FloatArray, one: int, other: int) -> bool:
    if max(one, other) >= goodput.size or not np.isfinite(goodput[[one, other]]).all():
        return False
    return bool(abs(goodput[one] / goodput[other] - 1.0) < TIE)


def _depths(schedule: str) -> list[int]:
    """Batch 1 on: `1-4:5 5-512:3` is four fives and then threes."""
    depths: list[int] = []
    for part in schedule.split():
        batches, _, depth = part.partition(":")
        first, _, last = batches.partition("-")
        depths += [int(depth)] * (int(last) - int(first) + 1)
    return depths
