"""Laws fitted to kernel times of a bare GPU, and what the times imply for verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specmargin.architecture.types import LatentAttention
from specmargin.errors import InputError
from specmargin.measure.gpu.shapes import ExpertShape, Shapes
from specmargin.prices.kernels.fit import Samples, fit
from specmargin.prices.kernels.kinds import expert_variant, grouped_variant, shape_key
from specmargin.prices.kernels.law import Evidence, Law, Terms
from specmargin.prices.kernels.terms import attention_terms, expert_terms, gemm_terms
from specmargin.step import BoolArray, FloatArray

ENGINE = "measured"
_DTYPE = "bfloat16"
_NO_EVIDENCE = Evidence(version="", rows=0, shapes=0, median_error=0.0, p90_error=0.0)

Row = Mapping[str, Any]


def laws_file(rows: Sequence[Row], shapes: Shapes, gpu: str, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """A file of laws for `--prices FILE`; bundled laws price the operations that it lacks."""
    source = (
        f"specmargin measure gpu, {conditions['gpu']}, driver {conditions['driver']}, "
        f"torch {conditions['torch']}, {conditions['date']}"
    )
    limit = 1.1 * copy_bandwidth(rows)  # reading alone is a little faster than reading and writing
    laws = []
    kernels: dict[str, Any] = {}
    if shapes.experts is not None:
        kernel = "triton"
        key = shape_key(
            shapes.experts.hidden, shapes.experts.intermediate, shapes.experts.experts_per_token, shapes.experts.experts
        )
        kernels[f"{gpu}/{ENGINE}/{_DTYPE}"] = {"default": kernel, "shapes": {key: kernel}}
        variant = expert_variant(kernel, spread=False, plain=False)
        laws.append(_entry(gpu, "experts", variant, _expert_law(rows, shapes.experts, limit, source)))
    laws.append(_entry(gpu, "gemm", "", _gemm_law(rows, limit, source)))
    variant = grouped_variant(shapes.attention, "bf16")
    laws.append(_entry(gpu, "attention", variant, _attention_law(rows, shapes, limit, source)))
    return {
        "schema": "specmargin.laws/1",
        "source": source,
        "conditions": dict(conditions),
        "kernels": kernels,
        "laws": laws,
        "rows": [{name: value for name, value in row.items() if name != "record"} for row in rows],
    }


def _entry(gpu: str, operation: str, variant: str, law: Law) -> dict[str, Any]:
    keys = {"gpu": gpu, "engine": ENGINE, "operation": operation, "dtype": _DTYPE, "variant": variant}
    return keys | law.as_json()


def copy_bandwidth(rows: Sequence[Row]) -> float:
    """Bytes read and written per second by a large copy."""
    return float(max(row["bytes"] / row["seconds"] for row in rows if row["operation"] == "copy"))


def matrix_rate(rows: Sequence[Row]) -> float:
    return float(max(row["operations"] / row["seconds"] for row in rows if row["operation"] == "product"))


def fastest_rows(rows: Sequence[Row], operation: str) -> list[Row]:
    """Rows of one operation; of several backends at one point, the fastest."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["operation"] != operation:
            continue
        point = tuple(row.get(name) for name in ("positions", "distinct", "outputs", "inputs", *_ATTENTION_KEYS))
        if point not in best or row["seconds"] < best[point]["seconds"]:
            best[point] = row
    return list(best.values())


_ATTENTION_KEYS = ("batch", "context", "queries")


def _column(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([float(row[name]) for row in rows])


def _expert_law(rows: Sequence[Row], shape: ExpertShape, limit: float, source: str) -> Law:
    expert_rows = fastest_rows(rows, "experts")
    positions = _column(expert_rows, "positions")
    terms = expert_terms(
        distinct=_column(expert_rows, "distinct"),
        pairs=positions * shape.experts_per_token,
        positions=positions,
        parameters=3.0 * shape.hidden * shape.intermediate,
        residents=float(shape.experts),
        hidden=float(shape.hidden),
        dtype=_DTYPE,
    )
    return _law(expert_rows, terms, limit, source, judged=positions <= 2 * shape.experts)


def _gemm_law(rows: Sequence[Row], limit: float, source: str) -> Law:
    gemm_rows = fastest_rows(rows, "gemm")
    positions = _column(gemm_rows, "positions")
    terms = gemm_terms(positions, _column(gemm_rows, "outputs"), _column(gemm_rows, "inputs"), _DTYPE)
    return _law(gemm_rows, terms, limit, source, judged=positions <= 256)


def _attention_law(rows: Sequence[Row], shapes: Shapes, limit: float, source: str) -> Law:
    """Rows with several queries per sequence are fitted too; the law has no term for them."""
    attention_rows = fastest_rows(rows, "attention")
    a = shapes.attention
    batch, context, queries = (_column(attention_rows, name) for name in _ATTENTION_KEYS)
    terms = attention_terms(
        sequences=batch,
        tokens=batch * context,
        pairs=batch * context * queries,
        longest=context,
        heads=a.heads,
        kv_heads=a.kv_heads,
        dims=a.key_dim + a.value_dim,
        kv_bytes=2.0,
    )
    return _law(attention_rows, terms, limit, source, judged=np.ones(len(attention_rows), dtype=bool))


def _law(rows: Sequence[Row], terms: Terms, limit: float, source: str, *, judged: BoolArray) -> Law:
    """Fitted to all rows; its errors are two-fold, of fits to every other row on the rest."""
    seconds = _column(rows, "seconds")
    samples = Samples(
        seconds=seconds,
        terms=terms,
        shape=np.zeros(seconds.size, dtype=np.int64),
        weight=np.ones(seconds.size),
        offset=np.zeros(()),
        bandwidth_limit=limit,
    )
    errors = np.zeros(seconds.size)
    for half in (np.arange(seconds.size) % 2 == 0, np.arange(seconds.size) % 2 == 1):
        rest = samples.where(~half)
        errors[~half] = np.abs(fit(samples.where(half), _NO_EVIDENCE).seconds(rest.terms) / rest.seconds - 1.0)
    evidence = Evidence(
        version=source,
        rows=int(seconds.size),
        shapes=1,
        median_error=round(float(np.median(errors[judged])), 4),
        p90_error=round(float(np.quantile(errors[judged], 0.9)), 4),
        note="held out: every other row",
    )
    return fit(samples, evidence)


# --- several queries, distinct experts ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Turning:
    """Time of several queries relative to one, and where attention turns from memory-bound to compute-bound."""

    kind: str  # grouped or latent
    context: int
    batch: int
    relative: dict[int, float]  # by queries
    measured_turn: float | None  # queries at which the time is 1.5 times that of one; None: not reached
    predicted_turn: float  # queries at which the products take as long as reading the KV cache


def turnings(rows: Sequence[Row], shapes: Shapes) -> list[Turning]:
    ridge = matrix_rate(rows) / copy_bandwidth(rows)
    intensity = {"attention": _grouped_intensity(shapes), "latent": _latent_intensity(shapes.latent)}
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


def _grouped_intensity(shapes: Shapes) -> float:
    """Operations per byte of KV cache, for one query."""
    a = shapes.attention
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """The result of `measure gpu`."""

    file: dict[str, Any]
    bytes_per_second: float
    operations_per_second: float
    launch_seconds: dict[bool, float]  # inside a graph, and without one
    experts: ExpertTimes | None
    turnings: list[Turning]
    unsteady: list[str]  # timings whose spread is above 10%
    failures: list[str]


_UNSTEADY = 0.1


def kernel_report(records: Sequence[Row], shapes: Shapes, gpu: str) -> KernelReport:
    rows = [row for row in records if row.get("record") == "row"]
    machines = [row for row in records if row.get("record") == "gpu"]
    if not machines or not any(row["operation"] == "latent" for row in rows):
        raise InputError("not enough kernels were timed for laws; run the same command again to continue")
    clocks = {f"clocks {row['when']}": row["clocks"] for row in records if row.get("record") == "clocks"}
    conditions = {name: value for name, value in machines[-1].items() if name != "record"} | clocks
    return KernelReport(
        file=laws_file(rows, shapes, gpu, conditions),
        bytes_per_second=copy_bandwidth(rows),
        operations_per_second=matrix_rate(rows),
        launch_seconds={row["graphs"]: row["seconds"] for row in rows if row["operation"] == "launch"},
        experts=None if shapes.experts is None else expert_times(rows, shapes.experts),
        turnings=turnings(rows, shapes),
        unsteady=[_row_name(row) for row in rows if row["spread"] > _UNSTEADY],
        failures=[f"{_row_name(row)}: {row['error']}" for row in records if row.get("record") == "failure"],
    )


def _row_name(row: Row) -> str:
    keys = ("positions", "distinct", "outputs", "inputs", *_ATTENTION_KEYS, "backend", "graphs", "when")
    return ", ".join([str(row["operation"]), *(f"{name} {row[name]}" for name in keys if name in row)])
