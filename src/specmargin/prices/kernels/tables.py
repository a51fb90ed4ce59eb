"""The measured tables themselves: how far they are from the law at the shape at hand, interpolated.

A price from tables is the law's time times measured over predicted. At a measured shape and size that is the
measurement itself; between sizes it is interpolated in logarithms; at a shape nobody measured the correction of its
nearest neighbour fades out with distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import polars as pl

from specmargin.architecture.types import Attention, ExpertBlock, GroupedAttention
from specmargin.prices.kernels import features, store
from specmargin.prices.kernels.book import Found
from specmargin.prices.kernels.features import AttentionShape
from specmargin.prices.kernels.kinds import is_plain
from specmargin.prices.kernels.law import Law
from specmargin.prices.kernels.model import LAWFUL, Correction
from specmargin.prices.kernels.terms import gemm_terms
from specmargin.prices.work import Work
from specmargin.step import FloatArray, IntArray, Step

Remembered = TypeVar("Remembered")
_REACH = 0.7  # log distance at which a neighbour's correction has faded to nothing
_FILES = {"moe": "moe_perf", "gemm": "gemm_perf", "attention": "generation_attention_perf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Log of measured over predicted along one axis, for one shape."""

    log_size: FloatArray
    log_ratio: FloatArray

    def at(self, size: FloatArray) -> FloatArray:
        return np.asarray(np.interp(np.log(np.maximum(size, 1e-9)), self.log_size, self.log_ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Log ratios over two axes (batch, context); points that nobody measured take the nearest that somebody did."""

    log_batch: FloatArray
    log_context: FloatArray
    log_ratio: FloatArray

    def at(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        b, c = np.log(np.maximum(batch, 1e-9)), np.log(context + 1.0)
        i, u = _cell(self.log_batch, b)
        j, v = _cell(self.log_context, c)
        r = self.log_ratio
        low = (1 - v) * r[i, j] + v * r[i, j + 1]
        high = (1 - v) * r[i + 1, j] + v * r[i + 1, j + 1]
        return np.asarray((1 - u) * low + u * high)


def _cell(axis: FloatArray, value: FloatArray) -> tuple[IntArray, FloatArray]:
    """Index of the cell and the place inside it, clamped to the ends."""
    index = np.clip(np.searchsorted(axis, value, side="right") - 1, 0, axis.size - 2)
    place = (value - axis[index]) / (axis[index + 1] - axis[index])
    return index, np.clip(place, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class TableRefinement:
    """Corrections from the tables of one GPU; engines are those that the laws name.

    A correction is relative to one law: what is remembered is remembered by law.
    """

    system: str
    bandwidth_bytes_per_second: float
    _memory: dict[object, Any] = field(default_factory=dict)

    def _table(self, operation: str, found: Found) -> store.Table | None:
        """The file that the law was fitted to: same engine, same version."""
        version = found.law.evidence.version.split(" ", 1)[-1]
        engine = found.law.evidence.version.split(" ", 1)[0]
        for path in store.versions(self.system, operation, engine, _FILES[operation]):
            if path.parent.name == version:
                return store.table(path)
        return None

    # --- GEMMs ---

    def gemm(self, found: Found, m: FloatArray, n: float, k: float) -> Correction:
        line, label = self._remembered(("gemm", found.law, n, k), lambda: self._gemm_line(found, n, k))
        return LAWFUL if line is None else Correction(factor=np.exp(line.at(m)), label=label)

    def _gemm_line(self, found: Found, n: float, k: float) -> tuple[Line | None, str]:
        grid = self._remembered(("gemm", found.law), lambda: self._gemm_grid(found))
        if grid is None:
            return None, ""
        beyond = "" if grid.holds(n, k) else ", beyond its largest shape"
        return grid.line(n, k), f"table of {found.law.evidence.version}{beyond}"

    def _gemm_grid(self, found: Found) -> GemmGrid | None:
        table = self._table("gemm", found)
        rows = features.gemm_rows(table, found.dtype) if table is not None else None
        return None if rows is None else GemmGrid.of(rows, found.law, found.dtype)

    # --- experts ---

    def experts(self, found: Found, block: ExpertBlock, work: Work) -> Correction:
        lines = self._remembered(("experts", found.dtype, found.law), lambda: self._expert_lines(found))
        if not lines:
            return LAWFUL
        down = block.expert[1]
        wanted = (
            down.outputs,
            down.inputs,
            block.pool.experts_per_token,
            block.pool.experts,
            work.ranks,
            work.expert_ranks,
        )
        line, weight = _nearest(lines, wanted, plain=is_plain(block), memory=self._memory)
        if weight == 0.0:
            return LAWFUL
        version = found.law.evidence.version
        table = f"table of {version} and before ({found.dtype})"
        label = table if weight == 1.0 else f"law of {version}, corrected by the nearest shape of the {table}"
        return Correction(factor=np.exp(weight * line.at(work.positions)), label=label)

    def _expert_lines(self, found: Found) -> dict[tuple[int, ...], Line]:
        """Newest measurement of every shape; versions that lack one leave it to older ones."""
        lines: dict[tuple[int, ...], Line] = {}
        for path in store.versions(self.system, "moe", found.engine, _FILES["moe"]):
            rows = features.expert_rows(store.table(path), found.dtype, bandwidth=self.bandwidth_bytes_per_second)
            if rows is not None:
                lines = expert_lines(rows.rows, found.law, found.dtype) | lines
        return lines

    # --- attention ---

    def attention(self, found: Found, attention: Attention, work: Work, step: Step) -> Correction:
        if not isinstance(attention, GroupedAttention) or work.kv is None:
            return LAWFUL
        heads, kv_heads = attention.heads // work.ranks, max(1, attention.kv_heads // work.ranks)
        kv = "fp8" if work.kv.name.startswith("fp8") else "bfloat16"
        shape = (heads, kv_heads, attention.key_dim, attention.window or 0, kv)
        sheet = self._remembered(("attention", found.law, shape), lambda: self._attention_sheet(found, shape))
        if sheet is None:
            return LAWFUL
        context = step.total(step.context_by_class) / np.maximum(step.sequences, 1e-9)
        factor = np.exp(sheet.at(step.sequences, context))
        return Correction(factor=factor, label=f"table of {found.law.evidence.version}")

    def _attention_sheet(self, found: Found, shape: AttentionShape) -> Sheet | None:
        table = self._table("attention", found)
        return None if table is None else attention_sheet(features.attention_rows(table, shape), found.law)

    def _remembered(self, key: object, make: Callable[[], Remembered]) -> Remembered:
        if key not in self._memory:
            self._memory[key] = make()
        found: Remembered = self._memory[key]
        return found


@dataclass(frozen=True, kw_only=True)
class GemmGrid:
    """Log ratios over n, k and m; the tables are full grids but for a handful of entries."""

    log_n: FloatArray
    log_k: FloatArray
    log_m: FloatArray
    log_ratio: FloatArray  # n × k × m

    @classmethod
    def of(cls, rows: pl.DataFrame, law: Law, dtype: str) -> GemmGrid:
        axes = [np.sort(rows[name].unique().to_numpy()).astype(np.float64) for name in ("n", "k", "m")]
        index = tuple(
            np.searchsorted(axis, rows[name].to_numpy()) for axis, name in zip(axes, ("n", "k", "m"), strict=True)
        )
        ratio = np.full([axis.size for axis in axes], np.nan)
        n, k, m = np.meshgrid(*axes, indexing="ij")
        lawful = np.log(law.seconds(gemm_terms(m, n, k, dtype)))
        ratio[index] = np.log(rows["seconds"].to_numpy()) - lawful[index]
        rising = _rising(_filled_along_last(ratio) + lawful) - lawful
        return cls(log_n=np.log(axes[0]), log_k=np.log(axes[1]), log_m=np.log(axes[2]), log_ratio=rising)

    def holds(self, n: float, k: float) -> bool:
        return bool(np.log(n) <= self.log_n[-1] and np.log(k) <= self.log_k[-1])

    def line(self, n: float, k: float) -> Line:
        """Log ratios over m of one shape."""
        i, u = _cell(self.log_n, np.asarray(np.log(n)))
        j, v = _cell(self.log_k, np.asarray(np.log(k)))
        r = self.log_ratio
        ratio = (1 - u) * ((1 - v) * r[i, j] + v * r[i, j + 1]) + u * ((1 - v) * r[i + 1, j] + v * r[i + 1, j + 1])
        return Line(log_size=self.log_m, log_ratio=ratio)


def _rising(log_seconds: FloatArray) -> FloatArray:
    """More positions never take less time: a dip in a table is a size at which the kernel was badly chosen before."""
    return np.asarray(np.minimum.accumulate(log_seconds[..., ::-1], axis=-1)[..., ::-1])


def _filled_along_last(values: FloatArray) -> FloatArray:
    """Missing entries from their neighbours along the last axis; rows that are wholly missing count as lawful."""
    flat = values.reshape(-1, values.shape[-1]).copy()
    position = np.arange(values.shape[-1])
    for index in np.flatnonzero(np.isnan(flat).any(axis=1)):
        known = ~np.isnan(flat[index])
        flat[index] = np.interp(position, position[known], flat[index, known]) if known.any() else 0.0
    return flat.reshape(values.shape)


def expert_lines(rows: pl.DataFrame, law: Law, dtype: str) -> dict[tuple[int, ...], Line]:
    """One line over tokens a shape (hidden, intermediate, top-k, experts, tensor and expert ranks)."""
    rows = rows.sort([*features.EXPERT_SHAPE, "num_tokens"])
    shapes = rows.select(features.EXPERT_SHAPE).to_numpy()
    log_size, log_seconds = (np.log(rows[name].to_numpy().astype(np.float64)) for name in ("num_tokens", "seconds"))
    log_lawful = np.log(law.seconds(features.expert_terms_of(rows, dtype)))
    starts = np.flatnonzero(np.any(shapes[1:] != shapes[:-1], axis=1)) + 1
    lines = {}
    for first, last in pairwise([0, *starts.tolist(), len(shapes)]):
        part = slice(first, last)
        ratio = _rising(log_seconds[part]) - log_lawful[part]
        lines[tuple(int(value) for value in shapes[first])] = Line(log_size=log_size[part], log_ratio=ratio)
    return lines


def _nearest(
    lines: dict[tuple[int, ...], Line], wanted: tuple[int, ...], *, plain: bool, memory: dict[object, Any]
) -> tuple[Line, float]:
    """The line of this shape, or of its nearest neighbour with a weight that falls with distance."""
    if wanted in lines:
        return lines[wanted], 1.0
    key = ("nearest", id(lines), wanted)
    if key not in memory:
        known = [shape for shape in lines if (shape[:2] in features.PLAIN_EXPERTS) == plain] or list(lines)
        here = _coordinates(np.array([wanted], dtype=np.float64))
        distance = np.abs(_coordinates(np.array(known, dtype=np.float64)) - here).sum(axis=1)
        best = int(distance.argmin())
        memory[key] = (lines[known[best]], max(0.0, 1.0 - float(distance[best]) / _REACH))
    found: tuple[Line, float] = memory[key]
    return found


def _coordinates(shapes: FloatArray) -> FloatArray:
    """Hidden size, a rank's share of an expert's width, experts a token, experts of a rank: in logarithms."""
    hidden, inter, topk, experts, tensor, spread = shapes.T
    return np.stack([np.log(hidden), np.log(inter / tensor), np.log(topk), np.log(experts / spread)], axis=1)


def attention_sheet(rows: pl.DataFrame, law: Law) -> Sheet | None:
    """Of rows of one shape; None where they do not span both axes."""
    batch, context = (np.sort(rows[name].unique().to_numpy()).astype(np.float64) for name in ("batch_size", "context"))
    if batch.size < 2 or context.size < 2:
        return None
    at = np.searchsorted(batch, rows["batch_size"].to_numpy()), np.searchsorted(context, rows["context"].to_numpy())
    ratio = np.full((batch.size, context.size), np.nan)
    ratio[at] = np.log(rows["seconds"].to_numpy() / law.seconds(features.attention_terms_of(rows)))
    return Sheet(log_batch=np.log(batch), log_context=np.log(context + 1.0), log_ratio=_filled_along_last(ratio))
