"""Terms of a round (verify step, verified sequence, draft pass) fitted to measured speed-ups, by engine.

Only vLLM's terms are measured. Other engines are priced with vLLM's as a prior. Would terms of their own, fitted to
published rows, predict better what they were not fitted to? A fit minimises the squared log error of the rows plus the
squared log distance of each term from its prior. Rows of one source err alike, so n rows count √n. Nothing here changes
a bundled term: where an engine has one source, no other source tests its own terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from scipy.optimize import least_squares

from lab.terminal import note, table
from specmargin.catalog.engine_times import NO_ENGINE_TIME, find_engine_time
from specmargin.prices.drafters import Drafter
from specmargin.prices.model import EngineTime
from specmargin.step import FloatArray, Step
from specmargin.validation.points_schema import Point
from specmargin.validation.speedups import PredictedPoint

TERMS = ("verify_step_seconds", "verify_sequence_seconds", "draft_pass_seconds")
_MEASURED = "vllm"  # its terms come from measured rounds
_PRICES = "tables"  # beside which the prior was fitted
_ROW_ERROR = 0.1  # of a measured speed-up, as a log
_PRIOR_FACTOR = 3.0  # a term this far from its prior counts as much as a row that is off by `_ROW_ERROR`
_NEGLIGIBLE_SECONDS = np.array([1e-4, 1e-5, 5e-5])  # by term: added to it before taking logs, so that 0 is a value
_FEWEST_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """A predicted row, and the terms of its round."""

    predicted: PredictedPoint
    counts: tuple[float, float, float]  # verify steps, verified sequences and draft passes of a round
    priced: tuple[float, float, float]  # seconds of each

    @classmethod
    def of(cls, predicted: PredictedPoint) -> RoundRow:
        point, scenario = predicted.point, predicted.pricer.scenario
        step = Step.uniform(batch=point.batch, depth=point.depth).divided(scenario.layout.sequence_ranks)
        counts = (1.0, float(step.verified_sequences), _passes(scenario.drafter, point.depth))
        time = scenario.engine_time
        priced = (time.verify_step_seconds, time.verify_sequence_seconds, time.draft_pass_seconds)
        return cls(predicted=predicted, counts=counts, priced=priced)

    @property
    def point(self) -> Point:
        return self.predicted.point

    def speedup(self, terms: Sequence[float] | FloatArray) -> float:
        """With other terms of a round; a closed loop changes as a round does."""
        row = self.predicted
        added = sum(n * (term - own) for n, term, own in zip(self.counts, terms, self.priced, strict=True))
        plain_seconds = row.point.tokens_per_round * row.no_spec_seconds
        return float(row.speedup / (1.0 + row.round_speedup * added / plain_seconds))


def _passes(drafter: Drafter, depth: int) -> float:
    """Passes of the drafter that the engine launches one after another in a round."""
    if drafter.runs is None or drafter.hit_rate is not None:  # overlapped passes are no term of their own
        return 0.0
    return 1.0 if drafter.drafts_blocks else float(depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors on rows that the terms were not fitted to: one source, model or GPU left out at a time."""

    by: str
    groups: int
    median_error: float
    bias: float
    prior_median_error: float
    prior_bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """Own terms of one engine. Seconds, by term in the order of `TERMS`."""

    engine: str
    rows: int
    sources: tuple[str, ...]
    prior: tuple[float, ...]
    fitted: tuple[float, ...]  # to all rows
    low: tuple[float, ...]  # over the fits with a group left out
    high: tuple[float, ...]
    held_out: tuple[HeldOut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFits:
    fits: tuple[EngineFit, ...]
    not_fitted: dict[str, str]  # by engine: why


def engine_fits(predicted: Sequence[RoundRow]) -> EngineFits:
    """Own terms of every engine in the report whose terms are not measured."""
    by_engine: dict[str, list[RoundRow]] = {}
    for row in predicted:
        if row.point.engine != _MEASURED:
            by_engine.setdefault(row.point.engine, []).append(row)
    fits, not_fitted = [], {}
    for engine, rows in sorted(by_engine.items()):
        name, group = _grouping(rows)
        groups = len({group(row.point) for row in rows})
        if groups < 2 or len(rows) < _FEWEST_ROWS:
            not_fitted[engine] = f"{_plural(len(rows), 'row')} of {_plural(groups, name)}"
        else:
            fits.append(_engine_fit(engine, rows, name, group))
    return EngineFits(fits=tuple(fits), not_fitted=not_fitted)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _grouping(rows: Sequence[RoundRow]) -> tuple[str, Callable[[Point], str]]:
    """Leave out models, or GPUs where the rows have more of them."""
    models, gpus = ({value(row.point) for row in rows} for value in (_model, _gpu))
    return ("GPU", _gpu) if len(gpus) > len(models) else ("model", _model)


def _model(point: Point) -> str:
    return point.model


def _gpu(point: Point) -> str:
    return point.gpu


def _source(point: Point) -> str:
    return point.source


def _engine_fit(engine: str, rows: Sequence[RoundRow], name: str, group: Callable[[Point], str]) -> EngineFit:
    prior = prior_terms(engine)
    by_source, _ = _held_out(rows, prior, "source", _source)
    by_group, terms = _held_out(rows, prior, name, group)
    return EngineFit(
        engine=engine,
        rows=len(rows),
        sources=tuple(sorted({row.point.source for row in rows})),
        prior=tuple(prior.tolist()),
        fitted=tuple(fit_terms(rows, prior).tolist()),
        low=tuple(terms.min(axis=0).tolist()),
        high=tuple(terms.max(axis=0).tolist()),
        held_out=(by_source, by_group),
    )


def prior_terms(engine: str) -> FloatArray:
    """The bundled terms of the engine, which are vLLM's, or vLLM's own for an engine without bundled terms."""
    bundled = find_engine_time(None, engine=engine, prices=_PRICES)
    time = find_engine_time(None, engine=_MEASURED, prices=_PRICES) if bundled is NO_ENGINE_TIME else bundled
    return _terms(time)


def _terms(time: EngineTime) -> FloatArray:
    return np.array([getattr(time, name) for name in TERMS], dtype=np.float64)


def _held_out(
    rows: Sequence[RoundRow], prior: FloatArray, by: str, group: Callable[[Point], str]
) -> tuple[HeldOut, FloatArray]:
    """Errors with each group left out of the fit; the prior alone where no other row is left. And the fitted terms."""
    names = np.array([group(row.point) for row in rows])
    error, terms = np.zeros(len(rows)), []
    for name in np.unique(names):
        inside = names == name
        others = [row for row, left_out in zip(rows, inside, strict=True) if not left_out]
        terms.append(fit_terms(others, prior))
        error[inside] = _log_errors([row for row, left_out in zip(rows, inside, strict=True) if left_out], terms[-1])
    errors, prior_errors = np.expm1(error), np.expm1(_log_errors(rows, prior))
    line = HeldOut(
        by=by,
        groups=len(terms),
        median_error=float(np.median(np.abs(errors))),
        bias=float(np.median(errors)),
        prior_median_error=float(np.median(np.abs(prior_errors))),
        prior_bias=float(np.median(prior_errors)),
    )
    return line, np.array(terms)


# --- the fit ---


def fit_terms(rows: Sequence[RoundRow], prior: FloatArray) -> FloatArray:
    """The terms of least squared log error, shrunk to the prior; the prior itself without rows."""
    if not rows:
        return prior
    weight = _source_weights(rows) / _ROW_ERROR
    start = np.log(prior + _NEGLIGIBLE_SECONDS)

    def residuals(logs: FloatArray) -> FloatArray:
        rows_part = weight * _log_errors(rows, np.exp(logs) - _NEGLIGIBLE_SECONDS)
        return np.concatenate([rows_part, (logs - start) / np.log(_PRIOR_FACTOR)])

    lowest = np.log(_NEGLIGIBLE_SECONDS)
    inside = np.maximum(start, lowest + 1e-6)
    result = least_squares(residuals, inside, bounds=(lowest, np.full(lowest.shape, np.inf)))
    return np.asarray(np.maximum(np.exp(result.x) - _NEGLIGIBLE_SECONDS, 0.0))


def _source_weights(rows: Sequence[RoundRow]) -> FloatArray:
    """So that n rows of a source count √n: the squares of their weights sum to it."""
    sources = [row.point.source for row in rows]
    return np.array([sources.count(source) ** -0.25 for source in sources])


def _log_errors(rows: Sequence[RoundRow], terms: FloatArray) -> FloatArray:
    """Log of predicted over measured speed-up with these terms of a round in place of those that were priced."""
    return np.array([np.log(row.speedup(terms) / row.point.speedup) for row in rows])


# --- the report ---

_NAMES = ("verify step", "verified sequence", "draft pass")


def show_fits(out: Console, fits: EngineFits) -> None:
    if not fits.fits and not fits.not_fitted:
        return
    out.print()
    if fits.fits:
        _show_errors(out, fits)
        _show_terms(out, fits)
    for engine, reason in fits.not_fitted.items():
        note(out, f"{engine}: no terms of its own are fitted ({reason})")
    note(
        out,
        "own terms: fitted to the engine's rows, shrunk to the prior, which is vLLM's measured terms. Bundled engine "
        "times keep the prior: no term is fitted to these rows",
    )


def _show_errors(out: Console, fits: EngineFits) -> None:
    shown = table(
        "Terms of a round: the prior against own terms, on rows left out",
        ("engine", "left out of the fit"),
        ("rows", "prior: median error (bias)", "own terms"),
    )
    for fit in fits.fits:
        for line in fit.held_out:
            shown.add_row(
                fit.engine,
                _left_out(line),
                str(fit.rows),
                f"{line.prior_median_error:.1%} ({line.prior_bias:+.0%})",
                f"{line.median_error:.1%} ({line.bias:+.0%})",
            )
    out.print(shown)
    out.print()


def _left_out(line: HeldOut) -> str:
    if line.groups == 1:
        return f"its only {line.by}: the prior alone"
    return f"one {line.by} of {line.groups} at a time"


def _show_terms(out: Console, fits: EngineFits) -> None:
    shown = table("How far own terms move, in ms", ("engine", "term"), ("prior → all rows", "with one left out"))
    for fit in fits.fits:
        for index, name in enumerate(_NAMES):
            shown.add_row(fit.engine, name, *_moved(fit, index))
    out.print(shown)
    out.print()


def _moved(fit: EngineFit, index: int) -> tuple[str, str]:
    prior, fitted, low, high = (values[index] * 1e3 for values in (fit.prior, fit.fitted, fit.low, fit.high))
    return f"{prior:.3f} → {fitted:.3f}", f"{low:.3f} to {high:.3f}"
