"""Fits of measured steps: rates and engine time with the least relative error, and their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specmargin.architecture.types import Architecture
from specmargin.errors import InputError
from specmargin.hardware.layout import Layout
from specmargin.prices.drafters import DraftTime
from specmargin.prices.measured import Rates
from specmargin.prices.model import EngineTime
from specmargin.prices.work import Component, Work, target_work
from specmargin.sources import Source, SourceKind
from specmargin.step import BoolArray, ExpertLoad, FloatArray, Step

MIN_POINTS = 6  # points that a fit needs
NAMES = (
    "step_seconds",
    "sequence_seconds",
    "position_seconds",
    "verify_step_seconds",
    "weight_bytes_per_second",
    "operations_per_second",
    "kv_bytes_per_second",
    "attention_operations_per_second",
)
_RESAMPLES = 40
_SLOWDOWN_PENALTY = 0.15  # a group that was a third slower weighs like one point that is 5% off
_START_PENALTY = 0.005  # on the distance from the start, in logarithms: decides only what the points leave open
_FITTED = Source(kind=SourceKind.MEASURED, detail="fitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Measured points as arrays, with the work of each step."""

    batch: FloatArray
    depth: FloatArray
    context: FloatArray
    distinct: FloatArray
    seconds: FloatArray
    works: tuple[Work, ...]

    @property
    def positions(self) -> FloatArray:
        return self.batch * (self.depth + 1.0)


def steps_of(
    rows: Sequence[Mapping[str, Any]], counted: Mapping[tuple[int, int, str], float], model: Architecture
) -> Steps:
    """`counted`: distinct experts by batch, depth and kind; uniform routing where they were not counted."""
    batch, depth, context = (np.array([float(row[name]) for row in rows]) for name in ("batch", "depth", "context"))
    seconds = np.array([row["seconds"] - row["draft_seconds"] for row in rows])
    distinct = np.array([_distinct(row, counted, model) for row in rows])
    step = Step.uniform(batch=batch, depth=depth, context=context)
    works = target_work(model, step, _load(model, distinct, step.positions), layout=Layout(), kv=model.kv_precision)
    outputs = np.array([float(row.get("outputs") or 0.0) for row in rows])
    if outputs.any():
        works = _without_idle(works, model, step, np.where(outputs > 0.0, outputs, step.positions))
    return Steps(batch=batch, depth=depth, context=context, distinct=distinct, seconds=seconds, works=tuple(works))


_AFTER_ATTENTION = (Component.DENSE_FFN, Component.ROUTER, Component.SHARED_EXPERTS, Component.ROUTED_EXPERTS)


def _without_idle(works: Sequence[Work], model: Architecture, step: Step, outputs: FloatArray) -> list[Work]:
    """Steps whose last layer goes on, after its attention, with the positions alone whose logits are wanted."""
    few = replace(step, run_by_class=np.minimum(step.run_by_class, outputs[..., np.newaxis]))
    distinct = np.array([_uniform(model, count) for count in outputs]) if model.pools else np.zeros_like(outputs)
    last = target_work(model, few, _load(model, distinct, outputs), layout=Layout(), kv=model.kv_precision)
    ends = {
        component: max(i for i, work in enumerate(works) if work.component is component)
        for component in {work.component for work in works}
    }
    kept = []
    for index, (work, idle) in enumerate(zip(works, last, strict=True)):
        if work.component in (Component.LM_HEAD, Component.SAMPLING):
            kept.append(idle)
        elif work.component in _AFTER_ATTENTION and index == ends[work.component]:
            kept += [replace(work, count=work.count - 1), replace(idle, count=1)]
        else:
            kept.append(work)
    return kept


def _load(model: Architecture, distinct: FloatArray, positions: FloatArray) -> ExpertLoad:
    """Every layer gets the mean over layers, which is all that a counter reports."""
    return ExpertLoad(
        distinct_by_group=tuple(distinct for _ in model.pools),
        pairs_by_group=tuple(positions * pool.experts_per_token for pool in model.pools),
    )


def _distinct(row: Mapping[str, Any], counted: Mapping[tuple[int, int, str], float], model: Architecture) -> float:
    if not model.pools:
        return 0.0
    key = row["batch"], row["depth"], _counted_kind(row["kind"])
    distinct = row["distinct"] or counted.get(key)
    if distinct:
        return float(distinct)
    return _uniform(model, row["batch"] * (row["depth"] + 1))


def _uniform(model: Architecture, positions: float) -> float:
    pool = model.pools[0]
    return float(pool.experts * (1.0 - (1.0 - pool.experts_per_token / pool.experts) ** positions))


def counted_experts(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int, str], float]:
    return {
        (row["batch"], row["depth"], _counted_kind(row["kind"])): row["distinct"] for row in rows if row["distinct"]
    }


def _counted_kind(kind: str) -> str:
    """Plain decoding routes in the same way whether speculation is off or not configured."""
    return "plain" if kind in ("none", "off") else kind


# --- rates and engine time ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    rates: Rates
    time: EngineTime

    def seconds(self, steps: Steps) -> FloatArray:
        step = Step.uniform(batch=steps.batch, depth=steps.depth, context=steps.context)
        return np.asarray(self.rates.seconds(steps.works) + self.time.seconds(step))

    def values(self) -> dict[str, float]:
        return {name: getattr(self.rates if name.endswith("per_second") else self.time, name) for name in NAMES}


def fit_steps(steps: Steps, used: BoolArray | None = None) -> Fit:
    chosen = np.ones(steps.seconds.size, dtype=bool) if used is None else used
    if int(chosen.sum()) < MIN_POINTS:
        raise InputError(f"only {int(chosen.sum())} points were measured; a fit needs {MIN_POINTS}: measure more")
    return _best_fit(steps, chosen, np.zeros((steps.seconds.size, 0)))[0]


def slowdowns(steps: Steps, groups: Sequence[str]) -> dict[str, float]:
    """How slow the machine was while each group of points was measured, relative to the whole measurement.

    Points of one group (run, batch and prompt) are measured in turns, so other work on the machine slows them alike.
    Groups are measured one after another, so it slows them differently.
    """
    names = list(dict.fromkeys(groups))
    member = np.array([[group == name for name in names] for group in groups], dtype=np.float64)
    _, log_slowdowns = _best_fit(steps, np.ones(len(groups), dtype=bool), member)
    return {name: float(np.exp(value)) for name, value in zip(names, log_slowdowns, strict=True)}


def _best_fit(steps: Steps, chosen: BoolArray, member: FloatArray) -> tuple[Fit, FloatArray]:
    """And the logarithm of each group's slowdown; `member`: (steps, groups). Robust (soft L1): an outlier weighs
    little."""
    from scipy.optimize import least_squares  # noqa: PLC0415 (an extra)

    start = _start(steps, chosen)

    def residuals(logs: FloatArray) -> FloatArray:
        own, slow = logs[: start.size], logs[start.size :]
        log_errors = np.log(_fit_from_logs(own).seconds(steps) / steps.seconds) + member @ slow
        return np.concatenate([log_errors[chosen], _START_PENALTY * (own - start), _SLOWDOWN_PENALTY * slow])

    logs = least_squares(residuals, np.pad(start, (0, member.shape[1])), loss="soft_l1", f_scale=0.05).x
    return _fit_from_logs(logs[: start.size]), logs[start.size :]


def _fit_from_logs(logs: FloatArray) -> Fit:
    values = dict(zip(NAMES, np.exp(logs).tolist(), strict=True))
    rates = {name: value for name, value in values.items() if name.endswith("per_second")}
    times = {name: value for name, value in values.items() if name not in rates}
    return Fit(rates=Rates(**rates), time=EngineTime(**times, source=_FITTED))


def _start(steps: Steps, chosen: BoolArray) -> FloatArray:
    """Starting guess: half of the shortest step reads weights, a third of the largest step computes."""
    small = int(np.argmin(np.where(chosen, steps.seconds, np.inf)))
    large = int(np.argmax(np.where(chosen, steps.positions, -np.inf)))
    shortest, longest = steps.seconds[small], steps.seconds[large]
    read_bytes = sum(work.count * float(np.broadcast_to(work.bytes, steps.batch.shape)[small]) for work in steps.works)
    flops = sum(work.count * float(np.broadcast_to(work.flops, steps.batch.shape)[large]) for work in steps.works)
    bandwidth, rate = read_bytes / (0.5 * shortest), flops / (longest / 3.0)
    engine = [0.4 * shortest, 0.01 * shortest, 0.001 * shortest, 0.05 * shortest]
    return np.asarray(np.log(np.array([*engine, bandwidth, rate, bandwidth, rate])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Errors of a fit on its own points, errors of fits to one half on the other half, and ranges of the parameters."""

    errors: FloatArray
    held_out_errors: FloatArray
    ranges: dict[str, tuple[float, float]]


def judge(steps: Steps, best: Fit, *, seed: int = 0) -> Judgement:
    errors = np.abs(best.seconds(steps) / steps.seconds - 1.0)
    order = np.lexsort((steps.batch, steps.distinct, steps.positions))
    half = np.zeros(steps.seconds.size, dtype=bool)
    half[order[::2]] = True
    held_out = np.full(steps.seconds.size, np.nan)
    for used in (half, ~half):
        other = fit_steps(steps, used)
        held_out[~used] = np.abs(other.seconds(steps) / steps.seconds - 1.0)[~used]
    return Judgement(errors=errors, held_out_errors=held_out, ranges=_ranges(steps, seed))


def _ranges(steps: Steps, seed: int) -> dict[str, tuple[float, float]]:
    """5th to 95th percentile of each parameter over bootstrap resamples of the points."""
    random = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(_RESAMPLES):
        used = np.zeros(steps.seconds.size, dtype=bool)
        used[random.integers(0, used.size, used.size)] = True
        if int(used.sum()) < MIN_POINTS:
            continue
        for name, value in fit_steps(steps, used).values().items():
            drawn[name].append(value)
    return {name: _percentiles(values) for name, values in drawn.items() if values}


def _percentiles(values: list[float]) -> tuple[float, float]:
    low, high = np.percentile(values, [5.0, 95.0])
    return float(f"{low:.4g}"), float(f"{high:.4g}")


# --- graphs, off, drafter ---


def eager_layer_seconds(fit: Fit, beyond: Steps, layers: int) -> float:
    """Extra time per layer of a step that runs without a CUDA graph."""
    extra = beyond.seconds - fit.seconds(beyond)
    return max(float(np.median(extra)) / layers, 0.0)


def floor_layer_seconds(fit: Fit, pieces: Steps, layers: int) -> float:
    """Minimum time per layer with piecewise graphs: a step takes this floor or its kernel time, whichever is longer."""
    rest = fit.seconds(pieces)
    candidates = np.concatenate([[0.0], np.sort(pieces.seconds)])
    errors = [float(np.abs(np.log(np.maximum(rest, floor) / pieces.seconds)).sum()) for floor in candidates]
    return float(candidates[int(np.argmin(errors))]) / layers


def with_off(time: EngineTime, fit: Fit, off: Steps, layers: int, *, passes: FloatArray, in_pieces: bool) -> EngineTime:
    """Cost of speculation that is configured but off: lost graphs, or drafter passes that keep its KV cache current.

    The timed passes are part of their steps, so the rest of a step is at most its time minus its passes.
    """
    rest = fit.seconds(off)
    if in_pieces:
        time = replace(time, off_floor_layer_seconds=floor_layer_seconds(fit, off, layers))
        rest = np.maximum(rest, time.off_floor_layer_seconds * layers)
    else:
        rest = np.minimum(rest, off.seconds - passes)
    step, sequence = _per_step_and_sequence(off, off.seconds - rest)
    return replace(time, off_step_seconds=step, off_sequence_seconds=sequence)


def scheduled(fit: Fit, plain: Steps, rounds: Steps | None, passes: FloatArray) -> EngineTime:
    """Engine time of the same kernels under another scheduling; `passes` are seconds of the drafter in each round."""
    bare = replace(fit.time, step_seconds=0.0, sequence_seconds=0.0, verify_step_seconds=0.0)
    kernels = Fit(rates=fit.rates, time=bare)
    step, sequence = _per_step_and_sequence(plain, plain.seconds - kernels.seconds(plain))
    verify = 0.0
    if rounds is not None:
        rest = rounds.seconds - kernels.seconds(rounds) - passes - step - sequence * rounds.batch
        verify = max(float(np.median(rest)), 0.0)
    return replace(bare, step_seconds=step, sequence_seconds=sequence, verify_step_seconds=verify)


def _per_step_and_sequence(steps: Steps, rest_seconds: FloatArray) -> tuple[float, float]:
    """What remains of steps as a time per step and one per sequence, with the least relative error."""
    features = np.stack([np.ones_like(steps.batch), steps.batch], axis=1) / steps.seconds[:, np.newaxis]
    step, sequence = _nonnegative(features, rest_seconds / steps.seconds)
    return float(step), float(sequence)


def _nonnegative(features: FloatArray, seconds: FloatArray) -> FloatArray:
    """Least squares with no coefficient below zero."""
    from scipy.optimize import nnls  # noqa: PLC0415 (an extra)

    return np.asarray(nnls(features, seconds)[0])


def draft_seconds(draft: DraftTime, batch: FloatArray, depth: FloatArray) -> FloatArray:
    first = draft.first_seconds + draft.first_sequence_seconds * batch
    return np.asarray(first + (depth - 1.0) * (draft.later_seconds + draft.later_sequence_seconds * batch))


def fit_drafter(rows: Sequence[Mapping[str, Any]], method: str) -> DraftTime:
    """First and later passes, each with a constant and a part per sequence."""
    batch, depth, seconds = (np.array([float(r[n]) for r in rows]) for n in ("batch", "depth", "draft_seconds"))
    later = depth - 1.0
    features = np.stack([np.ones_like(batch), batch, later, later * batch], axis=1)
    coefficients = _nonnegative(features / seconds[:, np.newaxis], np.ones_like(seconds))
    names = ("first_seconds", "first_sequence_seconds", "later_seconds", "later_sequence_seconds")
    return DraftTime(method=method, source=_FITTED, **dict(zip(names, coefficients.tolist(), strict=True)))
