"""The features of a law: the same arithmetic for the works of a step and for rows of measured tables.

No Polars here: the base install prices with laws alone.
"""

from __future__ import annotations

import numpy as np

from specmargin.architecture.precision import PRECISIONS
from specmargin.architecture.types import ExpertBlock, GroupedAttention, Matrix, Split, total_parameters
from specmargin.prices.attention import attended_pairs, attended_span
from specmargin.prices.kernels.law import Terms
from specmargin.prices.work import Work
from specmargin.step import ArrayLike, FloatArray, Step

# Bytes per parameter, by the dtype names of the tables.
BYTES = {
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": PRECISIONS["nvfp4"].bytes_per_parameter,
    "int4_wo": PRECISIONS["int4-g32"].bytes_per_parameter,
    "w4a16_mxfp4": PRECISIONS["mxfp4"].bytes_per_parameter,
    "w4a8_mxfp4_mxfp8": PRECISIONS["mxfp4"].bytes_per_parameter,
}
_ACTIVATION_BYTES = {"bfloat16": 2.0, "int4_wo": 2.0, "w4a16_mxfp4": 2.0, "nvfp4": BYTES["nvfp4"]}


def gemm_terms(m: FloatArray, n: ArrayLike, k: ArrayLike, dtype: str, parameter_bytes: float | None = None) -> Terms:
    """m positions times an n × k matrix; elements are the depth of the product."""
    n, k = np.asarray(n, np.float64), np.asarray(k, np.float64)
    activations = m * (k * _ACTIVATION_BYTES.get(dtype, 1.0) + n * 2.0)
    weights = n * k * (BYTES[dtype] if parameter_bytes is None else parameter_bytes)
    multiplied = marlin_positions(m) if dtype == "int4_wo" else m
    return Terms(bytes=weights + activations, operations=2.0 * multiplied * n * k, elements=k + 0.0 * m)


def marlin_positions(m: FloatArray) -> FloatArray:
    """Positions that Marlin multiplies: padded to a tile of 8, or to tiles of 16 (vLLM 0.32, marlin.cu:319)."""
    return np.where(m <= 8.0, 8.0, 16.0 * np.ceil(m / 16.0))


def quantize_terms(m: FloatArray, k: ArrayLike) -> Terms:
    """m positions of k activations, read in bf16 and written in fp8: a kernel before each GEMM of per-tensor fp8."""
    k = np.asarray(k, np.float64)
    return Terms(bytes=3.0 * m * k, operations=np.zeros(()), elements=k + 0.0 * m)


def fused(matrices: tuple[Matrix, ...]) -> list[tuple[Matrix, ...]]:
    """Matrices that engines run as one GEMM, together; the rest alone."""
    groups: dict[object, list[Matrix]] = {}
    for index, matrix in enumerate(matrices):
        key: object = (matrix.fused, matrix.inputs, matrix.precision) if matrix.fused else index
        groups.setdefault(key, []).append(matrix)
    return [tuple(group) for group in groups.values()]


def stages(matrices: tuple[Matrix, ...]) -> list[list[tuple[Matrix, ...]]]:
    """The GEMMs of these matrices (fused ones together), and which of them run at the same time."""
    by_stage: dict[object, list[tuple[Matrix, ...]]] = {}
    for index, group in enumerate(fused(matrices)):
        by_stage.setdefault(group[0].stage or index, []).append(group)
    return list(by_stage.values())


def gemm_shape(group: tuple[Matrix, ...], ranks: int) -> tuple[float, float]:
    """Rows of the output and depth of the product, on one rank."""
    first = group[0]
    if first.split is Split.ROWS:
        return float(first.outputs), first.inputs * first.share(ranks)
    return sum(matrix.outputs * matrix.share(ranks) for matrix in group), float(first.inputs)


def expert_terms(
    *,
    distinct: FloatArray,
    pairs: FloatArray,
    positions: FloatArray,
    parameters: ArrayLike,
    residents: ArrayLike,
    hidden: ArrayLike,
    dtype: str,
) -> Terms:
    """`parameters`: of one rank's share of an expert; `residents`: experts that the rank holds."""
    parameters, residents, hidden = (np.asarray(v, np.float64) for v in (parameters, residents, hidden))
    return Terms(
        bytes=distinct * parameters * BYTES[dtype],
        operations=2.0 * pairs * parameters,
        units=distinct,
        residents=residents,
        elements=pairs * hidden,
        crowded=np.clip(positions / residents - 1.0, 0.0, 1.0),
    )


def expert_terms_of_work(work: Work, block: ExpertBlock, dtype: str) -> Terms:
    return expert_terms(
        distinct=work.distinct,
        pairs=work.pairs,
        positions=work.positions,
        parameters=total_parameters(block.expert) / work.ranks,
        residents=block.pool.experts / work.expert_ranks,
        hidden=block.expert[0].inputs,
        dtype=dtype,
    )


def attention_terms(
    *,
    sequences: FloatArray,
    tokens: FloatArray,
    pairs: FloatArray,
    longest: FloatArray,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    dims: ArrayLike,
    kv_bytes: ArrayLike,
) -> Terms:
    """`tokens`: KV tokens read over all sequences, once each; `pairs`: query-token pairs; `dims`: of key and value."""
    heads, kv_heads, dims, kv_bytes = (np.asarray(v, np.float64) for v in (heads, kv_heads, dims, kv_bytes))
    return Terms(
        bytes=tokens * kv_heads * dims * kv_bytes,
        operations=pairs * heads * 2.0 * dims,
        units=sequences * kv_heads,
        elements=longest,
    )


def grouped_terms(attention: GroupedAttention, step: Step, *, kv_bytes: float, ranks: int) -> Terms:
    """Several queries per sequence: KV read once, compute in proportion. Modelled, because tables have one query."""
    run, context = step.run_by_class, step.context_by_class
    span = attended_span(run, context, attention.window)
    pairs = attended_pairs(run, context, attention.window)
    return attention_terms(
        sequences=step.sequences,
        tokens=step.total(span),
        pairs=step.total(pairs),
        longest=step.total(span) / np.maximum(step.sequences, 1.0),
        heads=attention.heads / ranks,
        kv_heads=max(1.0, attention.kv_heads / ranks),
        dims=attention.key_dim + attention.value_dim,
        kv_bytes=kv_bytes,
    )
