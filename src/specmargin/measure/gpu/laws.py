"""Laws fitted to kernel times of a bare GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specmargin.architecture.types import GroupedAttention
from specmargin.errors import InputError
from specmargin.measure.gpu.shapes import POINT, ExpertShape, Shapes, key_of
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
    if shapes.attention is not None:
        variant = grouped_variant(shapes.attention, "bf16")
        laws.append(_entry(gpu, "attention", variant, _attention_law(rows, shapes.attention, limit, source)))
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
        point = tuple(row.get(name) for name in POINT)
        if point not in best or row["seconds"] < best[point]["seconds"]:
            best[point] = row
    return list(best.values())


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


def _attention_law(rows: Sequence[Row], a: GroupedAttention, limit: float, source: str) -> Law:
    """Rows with several queries per sequence are fitted too; the law has no term for them."""
    attention_rows = fastest_rows(rows, "attention")
    batch, context, queries = (_column(attention_rows, name) for name in ("batch", "context", "queries"))
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


# --- the report ---


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """The result of `measure gpu`."""

    file: dict[str, Any]
    bytes_per_second: float
    operations_per_second: float
    launch_seconds: dict[bool, float]  # inside a graph, and without one
    unsteady: list[str]  # timings whose spread is above 10%
    failures: list[str]


_UNSTEADY = 0.1


def kernel_report(records: Sequence[Row], shapes: Shapes, gpu: str) -> KernelReport:
    rows = [row for row in records if row.get("record") == "row"]
    machines = [row for row in records if row.get("record") == "gpu"]
    if not machines or not any(row.get("when") == "after" for row in rows):  # the last that is timed
        raise InputError("not enough kernels were timed for laws; run the same command again to continue")
    clocks = {f"clocks {row['when']}": row["clocks"] for row in records if row.get("record") == "clocks"}
    conditions = {name: value for name, value in machines[-1].items() if name != "record"} | clocks
    return KernelReport(
        file=laws_file(rows, shapes, gpu, conditions),
        bytes_per_second=copy_bandwidth(rows),
        operations_per_second=matrix_rate(rows),
        launch_seconds={row["graphs"]: row["seconds"] for row in rows if row["operation"] == "launch"},
        unsteady=[key_of(row) for row in rows if row["spread"] > _UNSTEADY],
        failures=[f"{key_of(row)}: {row['error']}" for row in records if row.get("record") == "failure"],
    )
