"""Corrections from the measured tables: the ratio of measured to predicted time, interpolated.

A price from tables is the law's time multiplied by that ratio. At a measured shape and size it is the measurement
itself; between sizes the ratio is interpolated in logarithms; at a shape that was not measured, the correction of its
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
from specmargin.hardware.device import Device
from specmargin.prices.kernels import features, store
from specmargin.prices.kernels.book import LawEntry
from specmargin.prices.kernels.checks import Peaks
from specmargin.prices.kernels.features import AttentionShape
from specmargin.prices.kernels.kinds import is_plain
from specmargin.prices.kernels.law import Law
from specmargin.prices.kernels.sheets import NO_CORRECTION, Correction, Sheet, cell, filled_along_last
from specmargin.prices.kernels.terms import gemm_terms
from specmargin.prices.work import Work
from specmargin.step import FloatArray, Step

Cached = TypeVar("Cached")
_REACH = 0.7  # log distance at which a neighbour's correction has faded out
_FILES = {"moe": "moe_perf", "gemm": "gemm_perf", "attention": "generation_attention_perf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Log of measured over predicted time along one axis, for one shape."""

    log_size: FloatArray
    log_ratio: FloatArray

    def interpolate(self, size: FloatArray) -> FloatArray:
        return np.asarray(np.interp(np.log(np.maximum(size, 1e-9)), self.log_size, self.log_ratio))


@dataclass(frozen=True, kw_only=True)
class TableRefinement:
    """Corrections from the tables of one GPU.

    A correction is relative to one law, so the law is part of every cache key.
    """

    system: str
    device: Device
    _cache: dict[object, Any] = field(default_factory=dict)

    def _table(self, operation: str, entry: LawEntry) -> store.Table | None:
        """The file that the law was fitted to: same engine, same version."""
        version = entry.law.evidence.version.split(" ", 1)[-1]
        engine = entry.law.evidence.version.split(" ", 1)[0]
        for path in store.versions(self.system, operation, engine, _FILES[operation]):
            if path.parent.name == version:
                return store.table(path)
        return None

    # --- GEMMs ---

    def gemm(self, entry: LawEntry, m: FloatArray, n: float, k: float) -> Correction:
        line, label = self._cached(("gemm", entry.law, n, k), lambda: self._gemm_line(entry, n, k))
        return NO_CORRECTION if line is None else Correction(factor=np.exp(line.interpolate(m)), label=label)

    def _gemm_line(self, entry: LawEntry, n: float, k: float) -> tuple[Line | None, str]:
        grid = self._cached(("gemm", entry.law), lambda: self._gemm_grid(entry))
        if grid is None:
            return None, ""
        beyond = "" if grid.holds(n, k) else ", beyond its largest shape"
        return grid.line(n, k), f"table of {entry.law.evidence.version}{beyond}"

    def _gemm_grid(self, entry: LawEntry) -> GemmGrid | None:
        table = self._table("gemm", entry)
        rows = features.gemm_rows(table, entry.dtype, self._peaks(entry)) if table is not None else None
        return None if rows is None or rows.rows.height == 0 else GemmGrid.of(rows.rows, entry.law, entry.dtype)

    def _peaks(self, entry: LawEntry) -> Peaks:
        return Peaks.of(self.device, entry.dtype)

    # --- experts ---

    def experts(self, entry: LawEntry, block: ExpertBlock, work: Work) -> Correction:
        lines = self._cached(("experts", entry.dtype, entry.law), lambda: self._expert_lines(entry))
        if not lines:
            return NO_CORRECTION
        down = block.expert[1]
        shape = (
            down.outputs,
            down.inputs,
            block.pool.experts_per_token,
            block.pool.experts,
            work.ranks,
            work.expert_ranks,
        )
        line, weight = _nearest(lines, shape, plain=is_plain(block), cache=self._cache)
        if weight == 0.0:
            return NO_CORRECTION
        version = entry.law.evidence.version
        table = f"table of {version} and earlier ({entry.dtype})"
        label = table if weight == 1.0 else f"law of {version}, corrected by the nearest shape of the {table}"
        return Correction(factor=np.exp(weight * line.interpolate(work.positions)), label=label)

    def _expert_lines(self, entry: LawEntry) -> dict[tuple[int, ...], Line]:
        """Newest measurement of every shape: of the newest version that has it."""
        lines: dict[tuple[int, ...], Line] = {}
        for path in store.versions(self.system, "moe", entry.engine, _FILES["moe"]):
            rows = features.expert_rows(store.table(path), entry.dtype, self._peaks(entry))
            if rows is not None and rows.rows.height > 0:
                lines = expert_lines(rows.rows, entry.law, entry.dtype) | lines
        return lines

    # --- attention ---

    def attention(self, entry: LawEntry, attention: Attention, work: Work, step: Step) -> Correction:
        if not isinstance(attention, GroupedAttention) or work.kv is None:
            return NO_CORRECTION
        heads, kv_heads = attention.heads // work.ranks, max(1, attention.kv_heads // work.ranks)
        kv = "fp8" if work.kv.name.startswith("fp8") else "bfloat16"
        shape = (heads, kv_heads, attention.key_dim, attention.window or 0, kv)
        sheet = self._cached(("attention", entry.law, shape), lambda: self._attention_sheet(entry, shape))
        if sheet is None:
            return NO_CORRECTION
        context = step.total(step.context_by_class) / np.maximum(step.sequences, 1e-9)
        factor = np.exp(sheet.interpolate(step.sequences, context))
        return Correction(factor=factor, label=f"table of {entry.law.evidence.version}")

    def _attention_sheet(self, entry: LawEntry, shape: AttentionShape) -> Sheet | None:
        table = self._table("attention", entry)
        return None if table is None else attention_sheet(features.attention_rows(table, shape), entry.law)

    def _cached(self, key: object, make: Callable[[], Cached]) -> Cached:
        if key not in self._cache:
            self._cache[key] = make()
        value: Cached = self._cache[key]
        return value


@dataclass(frozen=True, kw_only=True)
class GemmGrid:
    """Log ratios over n, k and m; the tables are full grids except for a few entries."""

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
        predicted = np.log(law.seconds(gemm_terms(m, n, k, dtype)))
        ratio[index] = np.log(rows["seconds"].to_numpy()) - predicted[index]
        sustained = _sustained(filled_along_last(ratio) + predicted, np.log(axes[2]))
        monotonic = _nondecreasing(sustained) - predicted
        return cls(log_n=np.log(axes[0]), log_k=np.log(axes[1]), log_m=np.log(axes[2]), log_ratio=monotonic)

    def holds(self, n: float, k: float) -> bool:
        return bool(np.log(n) <= self.log_n[-1] and np.log(k) <= self.log_k[-1])

    def line(self, n: float, k: float) -> Line:
        """Log ratios over m of one shape."""
        i, u = cell(self.log_n, np.asarray(np.log(n)))
        j, v = cell(self.log_k, np.asarray(np.log(k)))
        r = self.log_ratio
        ratio = (1 - u) * ((1 - v) * r[i, j] + v * r[i, j + 1]) + u * ((1 - v) * r[i + 1, j] + v * r[i + 1, j + 1])
        return Line(log_size=self.log_m, log_ratio=ratio)


def _nondecreasing(log_seconds: FloatArray) -> FloatArray:
    """More positions never take less time: where a table dips, a slower kernel was chosen for the smaller sizes."""
    return np.asarray(np.minimum.accumulate(log_seconds[..., ::-1], axis=-1)[..., ::-1])


def _sustained(log_seconds: FloatArray, log_m: FloatArray) -> FloatArray:
    """No size takes less time per position than the largest, whose long kernels ran at the clock that power allows.

    Short kernels are measured in bursts at a higher clock: on an H200 8192 × 8192 in bf16 reaches 830 TFLOP/s up to
    4,096 positions and 660 at 32,768. An engine runs its kernels back to back.
    """
    return np.asarray(np.maximum(log_seconds, log_seconds[..., -1:] + log_m - log_m[-1]))


def expert_lines(rows: pl.DataFrame, law: Law, dtype: str) -> dict[tuple[int, ...], Line]:
    """One line over tokens per shape (hidden, intermediate, top-k, experts, tensor and expert ranks)."""
    rows = rows.sort([*features.EXPERT_SHAPE, "num_tokens"])
    shapes = rows.select(features.EXPERT_SHAPE).to_numpy()
    log_size, log_seconds = (np.log(rows[name].to_numpy().astype(np.float64)) for name in ("num_tokens", "seconds"))
    log_predicted = np.log(law.seconds(features.expert_terms_of(rows, dtype)))
    starts = np.flatnonzero(np.any(shapes[1:] != shapes[:-1], axis=1)) + 1
    lines = {}
    for first, last in pairwise([0, *starts.tolist(), len(shapes)]):
        part = slice(first, last)
        ratio = _nondecreasing(log_seconds[part]) - log_predicted[part]
        lines[tuple(int(value) for value in shapes[first])] = Line(log_size=log_size[part], log_ratio=ratio)
    return lines


def _nearest(
    lines: dict[tuple[int, ...], Line], shape: tuple[int, ...], *, plain: bool, cache: dict[object, Any]
) -> tuple[Line, float]:
    """The line of this shape, or of its nearest neighbour with a weight that falls with distance."""
    if shape in lines:
        return lines[shape], 1.0
    key = ("nearest", id(lines), shape)
    if key not in cache:
        candidates = [other for other in lines if (other[:2] in features.PLAIN_EXPERTS) == plain] or list(lines)
        origin = _coordinates(np.array([shape], dtype=np.float64))
        distance = np.abs(_coordinates(np.array(candidates, dtype=np.float64)) - origin).sum(axis=1)
        best = int(distance.argmin())
        cache[key] = (lines[candidates[best]], max(0.0, 1.0 - float(distance[best]) / _REACH))
    nearest: tuple[Line, float] = cache[key]
    return nearest


def _coordinates(shapes: FloatArray) -> FloatArray:
    """Logs of hidden size, a rank's share of an expert's width, experts per token, and experts per rank."""
    hidden, inter, topk, experts, tensor, spread = shapes.T
    return np.stack([np.log(hidden), np.log(inter / tensor), np.log(topk), np.log(experts / spread)], axis=1)


def attention_sheet(rows: pl.DataFrame, law: Law) -> Sheet | None:
    """The log ratios of one shape's rows; None where they do not span both axes."""
    return _sheet(rows, rows["seconds"].to_numpy(), law.seconds(features.attention_terms_of(rows)))


def _sheet(rows: pl.DataFrame, measured: FloatArray, predicted: FloatArray) -> Sheet | None:
    batch, context = (np.sort(rows[name].unique().to_numpy()).astype(np.float64) for name in ("batch_size", "context"))
    if batch.size < 2 or context.size < 2:
        return None
    cells = np.searchsorted(batch, rows["batch_size"].to_numpy()), np.searchsorted(context, rows["context"].to_numpy())
    ratio = np.full((batch.size, context.size), np.nan)
    ratio[cells] = measured / predicted
    return Sheet.of(batch, context, ratio)
