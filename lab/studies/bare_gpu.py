"""What kernel times of a bare GPU imply for verification: queries per sequence, and distinct experts against positions.

    python -m lab.studies.bare_gpu

From the rows that `specmargin measure gpu` recorded on an H200 (`lab/data/measurements/kernels-h200.json`). Those of
absorbed MLA were timed by its first release; no law is fitted to them, so it times them no longer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from lab.terminal import console, run, table
from specmargin.architecture.types import GroupedAttention, LatentAttention
from specmargin.catalog.lookup import find_model
from specmargin.measure.gpu.laws import copy_bandwidth, fastest_rows, matrix_rate
from specmargin.measure.gpu.shapes import ExpertShape, shapes_of

RECORDED = Path(__file__).resolve().parents[1] / "data/measurements/kernels-h200.json"
MLA = LatentAttention(heads=128, latent_dim=512, rope_dim=64)  # DeepSeek V3's
_QUERIES = (2, 4, 8, 16)

Row = Mapping[str, Any]


def recorded_rows() -> list[Row]:
    rows: list[Row] = json.loads(RECORDED.read_text(encoding="utf-8"))["rows"]
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Turning:
    """Time of several queries relative to one, and where attention turns from memory-bound to compute-bound."""

    kind: str  # grouped or latent
    context: int
    batch: int
    relative: dict[int, float]  # by queries
    measured_turn: float | None  # queries at which the time is 1.5 times that of one; None: not reached
    predicted_turn: float  # queries at which the products take as long as reading the KV cache


def turnings(rows: Sequence[Row], grouped: GroupedAttention, latent: LatentAttention) -> list[Turning]:
    ridge = matrix_rate(rows) / copy_bandwidth(rows)
    intensity = {"attention": _grouped_intensity(grouped), "latent": _latent_intensity(latent)}
    result = []
    for operation, kind in (("attention", "grouped"), ("latent", "latent")):
        seconds_by_point: dict[tuple[int, int], dict[int, float]] = {}
        for row in fastest_rows(rows, operation):
            seconds_by_point.setdefault((row["context"], row["batch"]), {})[row["queries"]] = row["seconds"]
        for (context, batch), times in seconds_by_point.items():
            relative = {q: seconds / times[1] for q, seconds in sorted(times.items())}
            result.append(
                Turning(
                    kind=kind,
                    context=context,
                    batch=batch,
                    relative=relative,
                    measured_turn=_queries_at(relative, 1.5),
                    predicted_turn=ridge / intensity[operation],
                )
            )
    return result


def _grouped_intensity(a: GroupedAttention) -> float:
    """Operations per byte of KV cache, for one query."""
    return 2.0 * a.heads / (a.kv_heads * 2.0)


def _latent_intensity(a: LatentAttention) -> float:
    return 2.0 * a.heads * (2 * a.latent_dim + a.rope_dim) / (2.0 * (a.latent_dim + a.rope_dim))


def _queries_at(relative: Mapping[int, float], level: float) -> float | None:
    """Queries at which the relative time reaches `level`, interpolated in their logarithm; None if it does not."""
    queries, values = np.log(list(relative)), np.array(list(relative.values()))
    above = np.flatnonzero(values >= level)
    if not above.size:
        return None
    index = int(above[0])
    if index == 0:
        return 1.0
    share = (level - values[index - 1]) / (values[index] - values[index - 1])
    return float(np.exp(queries[index - 1] + share * (queries[index] - queries[index - 1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTimes:
    """Growth with positions at equal distinct experts; linearity in distinct experts at equal positions."""

    growth: dict[int, dict[int, float]]  # distinct experts -> positions -> time relative to the fewest positions
    straightness: dict[int, float]  # positions -> worst deviation from a straight line in distinct experts, relative
    bytes_per_second: dict[int, float]  # positions -> expert bytes per second, from the slope of that line


def expert_times(rows: Sequence[Row], shape: ExpertShape) -> ExpertTimes:
    times: dict[int, dict[int, float]] = {}
    for row in fastest_rows(rows, "experts"):
        times.setdefault(row["distinct"], {})[row["positions"]] = row["seconds"]
    growth = {
        d: {t: s / min(by_positions.values()) for t, s in sorted(by_positions.items())}
        for d, by_positions in sorted(times.items())
    }
    straightness, rate = {}, {}
    for positions in sorted({t for by_positions in times.values() for t in by_positions}):
        line = [(d, by_positions[positions]) for d, by_positions in sorted(times.items()) if positions in by_positions]
        if len(line) < 4:
            continue
        distinct, seconds = (np.array(column) for column in zip(*line, strict=True))
        slope, start = np.polyfit(distinct, seconds, 1)
        straightness[positions] = float(np.max(np.abs((start + slope * distinct) / seconds - 1.0)))
        rate[positions] = 6.0 * shape.hidden * shape.intermediate / float(slope)
    return ExpertTimes(growth=growth, straightness=straightness, bytes_per_second=rate)


# --- the report ---


def report(out: Console) -> None:
    rows, shapes = recorded_rows(), shapes_of(find_model("qwen3-30b-a3b"))
    if shapes.experts is None or shapes.attention is None:
        raise AssertionError("the recorded model has experts and grouped attention")
    times = expert_times(rows, shapes.experts)
    positions = sorted({t for growth in times.growth.values() for t in growth})
    shown = table(
        "Fused experts: time by positions, relative to the shortest", ("distinct",), tuple(map(str, positions))
    )
    for distinct, growth in times.growth.items():
        shown.add_row(str(distinct), *(f"{growth[t]:.2f}" if t in growth else "" for t in positions))
    out.print(shown)
    lines = [f"{t}: {100 * off:.0f}%" for t, off in times.straightness.items()]
    out.print(f"largest deviation from a line in distinct experts, by positions: {', '.join(lines)}")
    heads = ("context", "batch", *(f"q = {q}" for q in _QUERIES), "1.5x at", "compute-bound at")
    shown = table("Several queries per sequence, relative to one", ("attention",), heads)
    for turn in turnings(rows, shapes.attention, MLA):
        cells = [f"{turn.relative[q]:.2f}" for q in _QUERIES]
        reached = "not reached" if turn.measured_turn is None else f"{turn.measured_turn:.1f}"
        shown.add_row(turn.kind, f"{turn.context:,}", str(turn.batch), *cells, reached, f"{turn.predicted_turn:.1f}")
    out.print(shown)


if __name__ == "__main__":
    run(lambda: report(console()), __doc__)
