"""The answer of a measurement: fitted prices with their ranges, and the errors of the fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Line, Table, bold, dim, left, right, warned
from specmargin.answers.request_schema import Request

if TYPE_CHECKING:
    from specmargin.measure.price_file import Fitted
    from specmargin.prices.measured_schema import EngineFields

Req = TypeVar("Req", bound=Request)
_RESOLVED = 2.0  # high / low beyond which the steps hardly depend on the parameter
_UNITS = {
    "weight_bytes_per_second": (1e-12, "TB/s", "weights are read at"),
    "operations_per_second": (1e-12, "TFLOP/s", "matrices multiply at"),
    "kv_bytes_per_second": (1e-12, "TB/s", "the KV cache is read at"),
    "attention_operations_per_second": (1e-12, "TFLOP/s", "attention computes at"),
    "step_seconds": (1e3, "ms", "engine, per step"),
    "verify_step_seconds": (1e3, "ms", "engine, per step that verifies drafts"),
    "sequence_seconds": (1e6, "µs", "engine, per sequence"),
    "position_seconds": (1e6, "µs", "engine, per position"),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MeasurementAnswer(Answer[Req]):
    """A price file, written with -o."""

    fitted: Fitted
    failures: dict[str, str]  # by engine run
    output: Path
    log: Path

    schema: ClassVar[str] = "specmargin.measure/1"

    @property
    def verdict(self) -> str:
        return f"{self.fitted.file.model.name} in {self.fitted.file.conditions['engine']}"

    def values(self) -> dict[str, Any]:
        file = self.fitted.file.model_dump(by_alias=True, exclude={"rows"})
        del file["schema"]
        return file | {"errors": _errors_by_kind(self.fitted), "unfinished": self.failures}

    def table(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.fitted.rows]

    def file_text(self) -> str:
        from specmargin.prices.measured_schema import as_text  # noqa: PLC0415 (only where it is written)

        return as_text(self.fitted.file)

    def blocks(self) -> Iterator[Block]:
        file = self.fitted.file
        yield bold(self.verdict)
        yield dim(f"{file.conditions['machine']}; {file.conditions['software']}; {file.conditions['date']}")
        yield Table(
            title="Prices",
            columns=[*left("what"), *right("fitted", "5% to 95%")],
            rows=[_price(name, *values) for name, values in _ranges(self.fitted).items()],
        )
        for mode, engine_time in file.modes.items():
            yield Line(_mode(mode, engine_time, file.model.layers))
        if file.drafter is not None:
            drafter = file.drafter
            first = f"{drafter.first_seconds * 1e3:.3g} ms + {drafter.first_sequence_seconds * 1e6:.3g} µs per sequence"
            later = f"{drafter.later_seconds * 1e3:.3g} ms + {drafter.later_sequence_seconds * 1e6:.3g} µs"
            yield Line(f"drafter {drafter.method}: first pass {first}, later passes {later}")
        yield _errors_table(self.fitted)
        yield from warned(self._warnings())
        yield Line(f"Wrote {self.output}; use it with --prices {self.output}")

    def _warnings(self) -> list[str]:
        file = self.fitted.file
        warnings = []
        if file.evidence.noisy:
            warnings += ["other work ran on this machine; lower quartiles and the speed of each batch were fitted"]
        if not file.evidence.counted_experts and file.model.experts:
            warnings += ["experts could not be counted; uniform routing was assumed"]
        return warnings + [
            f"engine {run} did not finish ({error}); run the same command to resume, or see {self.log}"
            for run, error in self.failures.items()
        ]


def _ranges(fitted: Fitted) -> dict[str, tuple[float, float, float]]:
    """Each fitted value with its 5% and 95% quantiles."""
    file = fitted.file
    values = file.rates.model_dump() | next(iter(file.modes.values())).model_dump()
    return {name: (values[name], *file.ranges.get(name, (values[name], values[name]))) for name in _UNITS}


def _price(name: str, value: float, low: float, high: float) -> list[str]:
    scale, unit, text = _UNITS[name]
    resolved = high < _RESOLVED * low
    interval = f"{low * scale:,.3g} to {high * scale:,.3g}" if resolved else "not resolved by these points"
    return [text, f"{value * scale:,.3g} {unit}", interval]


def _mode(mode: str, time: EngineFields, layers: int) -> str:
    parts = [f"mode {mode}: {time.step_seconds * 1e3:.3g} ms per step"]
    if time.graph_limit:
        eager_ms = time.eager_layer_seconds * layers * 1e3
        parts.append(f"captured up to {time.graph_limit} positions, {eager_ms:.3g} ms more beyond")
    if time.floor_layer_seconds:
        parts.append(f"no step under {time.floor_layer_seconds * layers * 1e3:.3g} ms")
    if time.off_floor_layer_seconds:
        parts.append(f"speculation disabled: no step under {time.off_floor_layer_seconds * layers * 1e3:.3g} ms")
    elif time.off_step_seconds or time.off_sequence_seconds:
        off = f"{time.off_step_seconds * 1e3:.3g} ms and {time.off_sequence_seconds * 1e6:.3g} µs per sequence"
        parts.append(f"speculation disabled: {off} more")
    return "; ".join(parts)


def _errors_table(fitted: Fitted) -> Table:
    return Table(
        title="Median (worst) error, fitted to all and to half of the points",
        columns=[*left("steps"), *right("points", "fitted", "held out")],
        rows=[
            [
                name,
                str(line["points"]),
                f"{line['median_error']:.1%} ({line['worst_error']:.1%})",
                f"{line['held_out_median_error']:.1%} ({line['held_out_worst_error']:.1%})",
            ]
            for name, line in _errors_by_kind(fitted).items()
        ],
    )


def _errors_by_kind(fitted: Fitted) -> dict[str, dict[str, Any]]:
    import numpy as np  # noqa: PLC0415 (not for help)

    kinds = np.array([row["kind"] for row in fitted.rows])
    errors = {}
    for kind in [*dict.fromkeys(kinds.tolist()), "all"]:
        chosen = np.ones(kinds.size, dtype=bool) if kind == "all" else kinds == kind
        own, held = fitted.judgement.errors[chosen], fitted.judgement.held_out_errors[chosen]
        errors[kind] = {
            "points": int(chosen.sum()),
            "median_error": float(np.median(own)),
            "worst_error": float(own.max()),
            "held_out_median_error": float(np.median(held)),
            "held_out_worst_error": float(held.max()),
        }
    return errors
