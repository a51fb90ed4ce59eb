"""Laws of kernels that were timed on a bare GPU, and what the times say of verifying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specmargin.architecture.types import LatentAttention
from specmargin.errors import InputError
from specmargin.measure.gpu.shapes import ExpertShape, Shapes
from specmargin.prices.kernels.fitting import Samples, fit
from specmargin.prices.kernels.kinds import expert_variant, grouped_variant, shape_key
from specmargin.prices.kernels.law import Evidence, Law, Terms
from specmargin.prices.kernels.terms import attention_terms, expert_terms, gemm_terms
from specmargin.step import BoolArray, FloatArray

ENGINE = "measured"
_DTYPE = "bfloat16"
_NOTHING = Evidence(version="", rows=0, shapes=0, median_error=0.0, p90_error=0.0)

Row = Mapping[str, Any]


def laws_file(rows: Sequence[Row], shapes: Shapes, gpu: str, where: Mapping[str, Any]) -> dict[str, Any]:
    """In the form of every other file of laws: `--prices FILE` takes it, and bundled laws fill what it lacks."""
    source = (
        f"specmargin measure gpu, {where['gpu']}, driver {where['driver']}, torch {where['torch']}, {where['date']}"
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
        "conditions": dict(where),
        "kernels": kernels,
        "laws": laws,
        "rows": [{name: value for name, value in row.items() if name != "record"} for row in rows],
    }


def _entry(gpu: str, operation: str, variant: str, law: Law) -> dict[str, Any]:
    keys = {"gpu": gpu, "engine": ENGINE, "operation": operation, "dtype": _DTYPE, "variant": variant}
    return keys | law.as_json()


def copy_bandwidth(rows: Sequence[Row]) -> float:
    """Bytes read and written a second by a large copy."""
    return float(max(row["bytes"] / row["seconds"] for row in rows if row["operation"] == "copy"))


def matrix_rate(rows: Sequence[Row]) -> float:
    return float(max(row["operations"] / row["seconds"] for row in rows if row["operation"] == "product"))


def of(rows: Sequence[Row], operation: str) -> list[Row]:
    """Rows of one operation; of several backends at one place, the fastest."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["operation"] != operation:
            continue
        place = tuple(row.get(name) for name in ("positions", "distinct", "outputs", "inputs", *_PLACE))
        if place not in best or row["seconds"] < best[place]["seconds"]:
            best[place] = row
    return list(best.values())


_PLACE = ("batch", "context", "queries")


def _column(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([float(row[name]) for row in rows])


def _expert_law(rows: Sequence[Row], shape: ExpertShape, limit: float, source: str) -> Law:
    found = of(rows, "experts")
    positions = _column(found, "positions")
    terms = expert_terms(
        distinct=_column(found, "distinct"),
        pairs=positions * shape.experts_per_token,
        positions=positions,
        parameters=3.0 * shape.hidden * shape.intermediate,
        residents=float(shape.experts),
        hidden=float(shape.hidden),
        dtype=_DTYPE,
    )
    return _law(found, terms, limit, source, judged=positions <= 2 * shape.experts)


def _gemm_law(rows: Sequence[Row], limit: float, source: str) -> Law:
    found = of(rows, "gemm")
    positions = _column(found, "positions")
    terms = gemm_terms(positions, _column(found, "outputs"), _column(found, "inputs"), _DTYPE)
    return _law(found, terms, limit, source, judged=positions <= 256)


def _attention_law(rows: Sequence[Row], shapes: Shapes, limit: float, source: str) -> Law:
    """Several queries a sequence are in the rows, not modelled."""
    found = of(rows, "attention")
    a = shapes.attention
    batch, context, queries = (_column(found, name) for name in _PLACE)
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
    return _law(found, terms, limit, source, judged=np.ones(len(found), dtype=bool))


def _law(found: Sequence[Row], terms: Terms, limit: float, source: str, *, judged: BoolArray) -> Law:
    """Fitted to all rows; its errors are those of fits to every other row on the rest."""
    seconds = _column(found, "seconds")
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
        errors[~half] = np.abs(fit(samples.where(half), _NOTHING).seconds(rest.terms) / rest.seconds - 1.0)
    evidence = Evidence(
        version=source,
        rows=int(seconds.size),
        shapes=1,
        median_error=round(float(np.median(errors[judged])), 4),
        p90_error=round(float(np.quantile(errors[judged], 0.9)), 4),
        note="held out: every other row",
    )
    return fit(samples, evidence)


# --- what the times say ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Turning:
    """The price of several queries relative to one, and where the products overtake the reading of the cache."""

    kind: str  # grouped or latent
    context: int
    batch: int
    relative: dict[int, float]  # by queries
    measured_turn: float | None  # queries at which the time is 1.5 times that of one; None: not reached
    predicted_turn: float  # queries at which products take as long as the cache takes to read


def turnings(rows: Sequence[Row], shapes: Shapes) -> list[Turning]:
    ridge = matrix_rate(rows) / copy_bandwidth(rows)
    intensity = {"attention": _grouped_intensity(shapes), "latent": _latent_intensity(shapes.latent)}
    found = []
    for operation, kind in (("attention", "grouped"), ("latent", "latent")):
        places: dict[tuple[int, int], dict[int, float]] = {}
        for row in of(rows, operation):
            places.setdefault((row["context"], row["batch"]), {})[row["queries"]] = row["seconds"]
        for (context, batch), times in places.items():
            relative = {q: seconds / times[1] for q, seconds in sorted(times.items())}
            found.append(
                Turning(
                    kind=kind,
                    context=context,
                    batch=batch,
                    relative=relative,
                    measured_turn=_reaches(relative, 1.5),
                    predicted_turn=ridge / intensity[operation],
                )
            )
    return found


def _grouped_intensity(shapes: Shapes) -> float:
    """Operations a byte of cache, for one query."""
    a = shapes.attention
    return 2.0 * a.heads / (a.kv_heads * 2.0)


def _latent_intensity(a: LatentAttention) -> float:
    return 2.0 * a.heads * (2 * a.latent_dim + a.rope_dim) / (2.0 * (a.latent_dim + a.rope_dim))


def _reaches(relative: Mapping[int, float], level: float) -> float | None:
    """Interpolated in the logarithm of the queries."""
    queries, values = np.log(list(relative)), np.array(list(relative.values()))
    above = np.flatnonzero(values >= level)
    if not above.size:
        return None
    last = int(above[0])
    if last == 0:
        return 1.0
    share = (level - values[last - 1]) / (values[last] - values[last - 1])
    return float(np.exp(queries[last - 1] + share * (queries[last] - queries[last - 1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTimes:
    """At equal distinct experts, how time grows with positions; at equal positions, how straight it is in experts."""

    growth: dict[int, dict[int, float]]  # distinct experts -> positions -> time relative to the fewest positions
    straightness: dict[int, float]  # positions -> worst deviation from a straight line in distinct experts, relative
    bytes_per_second: dict[int, float]  # positions -> expert bytes a second along that line


def expert_times(rows: Sequence[Row], shape: ExpertShape) -> ExpertTimes:
    times: dict[int, dict[int, float]] = {}
    for row in of(rows, "experts"):
        times.setdefault(row["distinct"], {})[row["positions"]] = row["seconds"]
    growth = {d: {t: s / min(by.values()) for t, s in sorted(by.items())} for d, by in sorted(times.items())}
    straightness, rate = {}, {}
    for positions in sorted({t for by in times.values() for t in by}):
        line = [(d, by[positions]) for d, by in sorted(times.items()) if positions in by]
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
    """All that `measure gpu` found."""

    file: dict[str, Any]
    bytes_per_second: float
    operations_per_second: float
    launch_seconds: dict[bool, float]  # inside a graph, and without one
    experts: ExpertTimes | None
    turnings: list[Turning]
    unsteady: list[str]  # timings whose spread is too wide to be believed
    failures: list[str]


_UNSTEADY = 0.1


def kernel_report(records: Sequence[Row], shapes: Shapes, gpu: str) -> KernelReport:
    rows = [row for row in records if row.get("record") == "row"]
    where = [row for row in records if row.get("record") == "gpu"]
    if not where or not any(row["operation"] == "latent" for row in rows):
        raise InputError("not enough kernels were timed for laws; run the same command again to go on")
    clocks = {f"clocks {row['when']}": row["clocks"] for row in records if row.get("record") == "clocks"}
    conditions = {name: value for name, value in where[-1].items() if name != "record"} | clocks
    return KernelReport(
        file=laws_file(rows, shapes, gpu, conditions),
        bytes_per_second=copy_bandwidth(rows),
        operations_per_second=matrix_rate(rows),
        launch_seconds={row["graphs"]: row["seconds"] for row in rows if row["operation"] == "launch"},
        experts=None if shapes.experts is None else expert_times(rows, shapes.experts),
        turnings=turnings(rows, shapes),
        unsteady=[_named(row) for row in rows if row["spread"] > _UNSTEADY],
        failures=[f"{_named(row)}: {row['error']}" for row in records if row.get("record") == "failure"],
    )


def _named(row: Row) -> str:
    keys = ("positions", "distinct", "outputs", "inputs", *_PLACE, "backend", "graphs", "when")
    return ", ".join([str(row["operation"]), *(f"{name} {row[name]}" for name in keys if name in row)])
