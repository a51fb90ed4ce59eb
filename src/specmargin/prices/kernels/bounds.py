"""Measured times of whole attention modules: what the sum of a module's parts never exceeds.

A law has a few numbers for hundreds of shapes, so a sum of laws is above some measured modules and below others. Where
the module itself was measured, its row bounds them: the parts are scaled down to it. They are not scaled up: rows of
many tables include launches, and norms and rotations of a module are in the engine's time per layer already
(docs/reference/formulas.md). Bundled, so that prices from laws and prices from tables are bounded alike
(`catalog/module_bounds.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from specmargin.architecture.precision import BF16, PRECISIONS, Precision
from specmargin.architecture.types import LinearAttention, Matrix
from specmargin.prices.kernels.kinds import DTYPES, attention_kind
from specmargin.prices.kernels.sheets import NO_CORRECTION, Correction, Sheet
from specmargin.prices.kernels.terms import fused, gemm_shape
from specmargin.prices.work import Module
from specmargin.step import FloatArray, Step

# Formats of a module's quantised matrices, by their names in the tables.
GEMM_TYPES = {"bfloat16": BF16, "fp8_block": PRECISIONS["fp8-block"], "nvfp4": PRECISIONS["nvfp4"]}
Prediction = Callable[[Step], FloatArray]  # seconds of a module as the sum of its parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleShape:
    """A module as it is on one of `ranks` tensor-parallel ranks, and the precision of its cache."""

    module: Module
    ranks: int
    kv: Precision


def signature(shape: ModuleShape) -> str:
    """What two modules share if their rows are interchangeable, whatever models they belong to.

    GatedDeltaNet: state and convolution of one rank. Others: format, cache, and the GEMMs of one rank.
    """
    attention = shape.module.attention
    kind = attention_kind(attention)
    if isinstance(attention, LinearAttention):
        return f"{kind} {attention.state_elements / shape.ranks:g} {attention.convolution_elements / shape.ranks:g}"
    gemms = sorted((*gemm_shape(group, shape.ranks), group[0].copies) for group in fused(shape.module.projections))
    cache = "fp8" if shape.kv.name.startswith("fp8") else "bf16"
    return " ".join([kind, _gemm_type(shape.module), cache, *(f"{n:g}x{k:g}x{copies}" for n, k, copies in gemms)])


def _gemm_type(module: Module) -> str:
    """As the tables name the format of the quantised matrices; "" where no table has it."""
    return next((name for name in DTYPES.get(main_precision(module).name, ()) if name in GEMM_TYPES), "")


def main_precision(module: Module) -> Precision:
    largest: Matrix = max(module.projections, key=lambda matrix: matrix.parameters)
    return largest.precision


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTimes:
    """Measured seconds of one module by batch and context; NaN where a point was not measured."""

    version: str  # engine and release
    batch: FloatArray
    context: FloatArray  # one entry: the time does not depend on it
    seconds_by_batch_context: FloatArray

    def sheet(self, predict: Prediction) -> Sheet | None:
        """How far the sum of parts must come down to the measured time; None with a single batch size."""
        if self.batch.size < 2:
            return None
        context = self.context if self.context.size > 1 else np.array([0.0, 1.0])
        step = Step.uniform(batch=self.batch[:, np.newaxis], context=context)
        ratio = self.seconds_by_batch_context / predict(step)
        return Sheet.of(self.batch, context, np.minimum(ratio, 1.0))


@dataclass(frozen=True, kw_only=True)
class ModuleBounds:
    """Measured modules of one GPU, by engine and signature, for one price model: ratios to its sums are kept.

    `load` is called when the first module is priced.
    """

    load: Callable[[], Mapping[tuple[str, str], ModuleTimes]]
    _cache: dict[object, tuple[Sheet | None, str]] = field(default_factory=dict)

    def correction(self, engines: tuple[str, ...], shape: ModuleShape, step: Step, predict: Prediction) -> Correction:
        """Measured over predicted time, at most 1, and whose rows say so; the first engine's that has any.

        By number of sequences, as rows have one query each; several queries take the same correction.
        """
        key = (engines, shape)
        if key not in self._cache:
            self._cache[key] = self._sheet(engines, shape, predict)
        sheet, label = self._cache[key]
        if sheet is None:
            return NO_CORRECTION
        context = step.total(step.context_by_class) / np.maximum(step.sequences, 1e-9)
        return Correction(factor=np.exp(sheet.interpolate(step.sequences, context)), label=label)

    def _sheet(self, engines: tuple[str, ...], shape: ModuleShape, predict: Prediction) -> tuple[Sheet | None, str]:
        wanted = signature(shape)
        for engine in dict.fromkeys(engines):
            times = self.load().get((engine, wanted))
            sheet = None if times is None else times.sheet(predict)
            if times is not None and sheet is not None:
                return sheet, f"module table of {times.version}"
        return None, ""
