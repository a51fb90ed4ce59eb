"""Speed-ups that others measured and published, or your own, against predictions and against simple rules.

A row is a scenario (model, GPUs, engine, drafter, depth, batch, context) with its measured accept length and its
measured speed-up over no speculation. It is predicted with its own accept length, so that only prices are judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from specmargin.answers.request_schema import ScenarioRequest, read_request
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.routing_profiles import ASSUMED, SCALED, find_routing
from specmargin.decisions.pricer import Pricer
from specmargin.errors import ParallelismError, ScenarioError, SpecmarginError
from specmargin.formats import find_engine
from specmargin.prices.drafters import Drafter
from specmargin.step import BoolArray, FloatArray, Step
from specmargin.validation.points_schema import Point
from specmargin.validation.whole_requests import Loop, closed_loop, lengths_of

_MOSTLY = 0.5  # share of the time from which on prompts, not decoding, decide a row

# --- predictions ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """Seconds behind a predicted speed-up, per sequence, apart from the terms of a round that can be fitted."""

    no_spec_seconds: float  # per output token, with prompts
    rest_seconds: float  # a round without the terms below
    prompt_seconds: float  # per output token while speculating
    accept_length: float
    counts: tuple[float, float, float]  # verify steps, verified sequences and draft passes of a round
    terms: tuple[float, float, float]  # seconds of each, as priced

    def speedup(self, terms: Sequence[float] | FloatArray) -> float:
        """With other terms of a round."""
        round_seconds = self.rest_seconds + sum(n * term for n, term in zip(self.counts, terms, strict=True))
        return float(self.no_spec_seconds / (round_seconds / self.accept_length + self.prompt_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    point: Point
    cost: RoundCost
    datasheet_speedup: float  # a baseline: the bare datasheet, no engine time, the scaled curves of one model
    is_moe: bool
    prices: str
    loop: Loop | None  # whole requests in a closed loop; None: decoding alone, or lengths unknown

    @property
    def speedup(self) -> float:
        """Of the closed loop where the figure is of whole requests, else of a round over a plain step."""
        return self.round_speedup if self.loop is None else self.loop.speedup

    @property
    def round_speedup(self) -> float:
        """Of a round and its prompts, one after another."""
        return self.cost.speedup(self.cost.terms)

    def with_terms(self, terms: Sequence[float] | FloatArray) -> float:
        """The speed-up with other terms of a round; a closed loop changes as a round does."""
        return self.speedup * self.cost.speedup(terms) / self.round_speedup

    @property
    def is_prefill(self) -> bool:
        """Mostly prompts: an error of such a row says little about decoding."""
        return self.loop is not None and self.loop.prefill_share > _MOSTLY


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupReport:
    predicted: tuple[PredictedPoint, ...]
    refused: dict[str, str]  # by id: why the row could not be asked


def predict(points: Sequence[Point], folder: Path, advance: Callable[[int], object] = int) -> SpeedupReport:
    """Every point that can be asked. Models and GPUs are names, or paths relative to `folder`."""
    predicted, refused = [], {}
    pricers: dict[tuple[Any, ...], Pricer] = {}
    for point in points:
        try:
            predicted.append(_predict_point(point, folder, pricers))
        except SpecmarginError as error:
            refused[point.id] = str(error)
        advance(1)
    return SpeedupReport(predicted=tuple(predicted), refused=refused)


def _predict_point(point: Point, folder: Path, pricers: dict[tuple[Any, ...], Pricer]) -> PredictedPoint:
    pricer = _pricer(point, folder, pricers, prices=None)
    datasheet = _pricer(point, folder, pricers, prices="datasheet")
    cost, bare = _cost(pricer, point), _cost(datasheet, point)
    return PredictedPoint(
        point=point,
        cost=cost,
        datasheet_speedup=bare.speedup(bare.terms),
        is_moe=pricer.scenario.architecture.is_moe,
        prices=pricer.scenario.prices.name,
        loop=_loop(pricer, point) if point.of_whole_requests else None,
    )


def _loop(pricer: Pricer, point: Point) -> Loop | None:
    """None without known lengths, or where the model does not fit on GPUs whose number had to be assumed."""
    lengths = lengths_of(point)
    if lengths is None:
        return None
    try:
        return closed_loop(pricer, point, lengths, find_engine(point.engine).batched_tokens(pricer.scenario.device))
    except (ParallelismError, ScenarioError):
        return None


def _cost(pricer: Pricer, point: Point) -> RoundCost:
    grid, scenario = pricer.grid([point.batch], point.depth), pricer.scenario
    plain, spec = float(grid.no_spec_seconds[0]), float(grid.round_seconds[0, point.depth])
    time = scenario.engine_time
    terms = (time.verify_step_seconds, time.verify_sequence_seconds, time.draft_pass_seconds)
    step = Step.uniform(batch=point.batch, depth=point.depth).divided(scenario.layout.sequence_ranks)
    counts = (1.0, float(step.verified_sequences), _passes(scenario.drafter, point.depth))
    priced = sum(count * term for count, term in zip(counts, terms, strict=True))
    prompts = 0.0 if point.osl is None else point.waiting_prompts / point.osl  # per output token
    reading = (0.0, 0.0)
    if point.isl is not None:
        reading = (pricer.prefill_seconds(point.isl), pricer.prefill_seconds(point.isl, speculating=True))
    return RoundCost(
        no_spec_seconds=plain + prompts * reading[0],
        rest_seconds=spec - priced,
        prompt_seconds=prompts * reading[1],
        accept_length=point.accept_length,
        counts=counts,
        terms=terms,
    )


def _passes(drafter: Drafter, depth: int) -> float:
    """Passes of the drafter that the engine launches one after another in a round."""
    if drafter.runs is None or drafter.hit_rate is not None:  # overlapped passes are no term of their own
        return 0.0
    return 1.0 if drafter.drafts_blocks else float(depth)


def _pricer(point: Point, folder: Path, pricers: dict[tuple[Any, ...], Pricer], *, prices: str | None) -> Pricer:
    drafter, colon, detail = point.drafter.partition(":")
    asked: dict[str, Any] = {
        "model": _local(point.model, folder),
        "gpu": _local(point.gpu, folder),
        "gpus": point.gpus,
        "parallel": point.parallel,
        "engine": point.engine,
        "drafter": f"{drafter}{colon}{_local(detail, folder) if detail else ''}",
        "context": round(point.context),
        "acceptance": "0",  # the row has its own accept length
        "weights": point.weights,
        "kv_cache": point.kv_cache,
        "prices": prices,
        "engine_time": point.engine_time if prices is None else None,
    }
    key = tuple(asked.values())
    if key not in pricers:
        given = {name: value for name, value in asked.items() if value is not None}
        scenario = scenario_of(read_request(ScenarioRequest, given))[1]
        if (
            prices is not None and scenario.architecture.is_moe and scenario.routing.name == ASSUMED
        ):  # a baseline without what these rows settled
            scenario = replace(scenario, routing=find_routing(SCALED, scenario.architecture))
        pricers[key] = Pricer(scenario)
    return pricers[key]


def _local(name: str, folder: Path) -> str:
    return str(folder / name) if (folder / name).exists() else name


# --- errors ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupLine:
    """Errors of one rule on one group of rows."""

    group: str
    rule: str
    rows: int
    median_error: float
    bias: float  # median of predicted over measured, less 1
    p90_error: float
    rank_correlation: float | None  # None for fewer than five rows
    right_calls: float  # share of rows for which "pays" or "does not pay" is right


def speedup_lines(report: SpeedupReport) -> list[SpeedupLine]:
    rows = report.predicted
    groups: dict[str, list[int]] = {"all rows": list(range(len(rows)))}
    for index, row in enumerate(rows):
        for group in _groups(row):
            groups.setdefault(group, []).append(index)
    rules = _rules(rows)
    measured = np.array([row.point.speedup for row in rows])
    return [
        _line(group, rule, predicted[members], measured[members])
        for group, members in sorted(groups.items(), key=lambda item: (item[0] != "all rows", item[0]))
        for rule, predicted in rules.items()
    ]


def source_median(report: SpeedupReport) -> float:
    """Median over sources of each source's median error: every source counts once."""
    errors: dict[str, list[float]] = {}
    for row in report.predicted:
        errors.setdefault(row.point.source, []).append(abs(row.speedup / row.point.speedup - 1.0))
    return float(np.median([np.median(of_source) for of_source in errors.values()]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopErrors:
    """Rows of whole requests, predicted as a closed loop; and as rounds and prompts one after another."""

    rows: int
    median_error: float
    bias: float
    round_median_error: float
    not_simulated: int  # without known lengths, or where the model does not fit on the assumed GPUs


def loop_errors(report: SpeedupReport) -> LoopErrors | None:
    rows = [row for row in report.predicted if row.loop is not None]
    if not rows:
        return None
    measured = np.array([row.point.speedup for row in rows])
    looped = np.array([row.speedup for row in rows]) / measured - 1.0
    rounds = np.array([row.round_speedup for row in rows]) / measured - 1.0
    return LoopErrors(
        rows=len(rows),
        median_error=float(np.median(np.abs(looped))),
        bias=float(np.median(looped)),
        round_median_error=float(np.median(np.abs(rounds))),
        not_simulated=sum(row.point.of_whole_requests and row.loop is None for row in report.predicted),
    )


def _rules(rows: Sequence[PredictedPoint]) -> dict[str, FloatArray]:
    """Specmargin, and three rules that anybody can apply to the same rows."""
    length = np.array([row.point.accept_length for row in rows])
    measured = np.array([row.point.speedup for row in rows])
    source = np.array([row.point.source for row in rows])
    scaled = np.full(length.shape, np.nan)
    for name in np.unique(source):
        others = source != name
        if others.any():
            scaled[~others] = length[~others] * np.median(measured[others] / length[others])
    return {
        "specmargin": np.array([row.speedup for row in rows]),
        "accept length": length,
        "constant × accept length": scaled,  # the constant comes from the other sources
        "datasheet": np.array([row.datasheet_speedup for row in rows]),
    }


def _groups(row: PredictedPoint) -> Iterable[str]:
    point = row.point
    yield f"source {point.source}"
    yield "MoE" if row.is_moe else "dense"
    yield f"engine {point.engine}"
    yield f"drafter {point.drafter.partition(':')[0]}"
    yield f"prices {row.prices}"
    yield "batch 1" if point.batch == 1 else "batch 2 to 16" if point.batch <= 16 else "batch over 16"


def _line(group: str, rule: str, predicted: FloatArray, measured: FloatArray) -> SpeedupLine:
    usable = np.isfinite(predicted)
    error = predicted[usable] / measured[usable] - 1.0
    rank = float(spearmanr(predicted[usable], measured[usable]).statistic) if _ranks(predicted[usable]) else None
    return SpeedupLine(
        group=group,
        rule=rule,
        rows=int(usable.sum()),
        median_error=float(np.median(np.abs(error))) if usable.any() else float("nan"),
        bias=float(np.median(error)) if usable.any() else float("nan"),
        p90_error=float(np.quantile(np.abs(error), 0.9)) if usable.any() else float("nan"),
        rank_correlation=rank,
        right_calls=float(((predicted[usable] > 1.0) == (measured[usable] > 1.0)).mean()) if usable.any() else 0.0,
    )


def _ranks(predicted: FloatArray) -> bool:
    return predicted.size >= 5 and np.unique(predicted).size > 1


# --- ranges ---

#: 80% of the error of verify over plain steps that a datasheet adds to that of scaled laws, as a logarithm. The medians
#: over nine GPUs are 8.1% and 3.2% (`python -m lab.validation.scaled`): √(0.081² − 0.032²) · 1.2816 / 0.6745.
DATASHEET_EXTRA = 0.14


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """80% ranges of the predicted speed-ups, each from the errors of the other sources."""

    low: FloatArray
    high: FloatArray
    inside: BoolArray

    @property
    def median_width(self) -> float:
        """Median of high over low."""
        return float(np.median(self.high / self.low))


def ranges(report: SpeedupReport) -> Ranges | None:
    """None where all rows are of one source. A source of n rows counts √n: rows of one source err alike.

    Rows that are mostly prefill say nothing about the others. Rows that are priced by a datasheet get a wider range, by
    what datasheets add to the error of measured kernels.
    """
    rows = report.predicted
    source = np.array([row.point.source for row in rows])
    if np.unique(source).size < 2:
        return None
    predicted, measured = (
        np.array(values) for values in zip(*((row.speedup, row.point.speedup) for row in rows), strict=True)
    )
    error = np.log(measured / predicted)
    prefill = np.array([row.is_prefill for row in rows])
    low, high = np.zeros(error.shape), np.zeros(error.shape)
    for name in np.unique(source):
        own, others = source == name, (source != name) & ~prefill
        if not others.any():
            others = source != name
        rows_by_source = Counter(source[others].tolist())
        weight = np.array([rows_by_source[other] ** -0.5 for other in source[others].tolist()])
        low[own], high[own] = (weighted_quantile(error[others], weight, share) for share in (0.1, 0.9))
    bare = np.array([row.prices == "datasheet" for row in rows])
    low[bare], high[bare] = -np.hypot(low[bare], DATASHEET_EXTRA), np.hypot(high[bare], DATASHEET_EXTRA)
    low, high = predicted * np.exp(low), predicted * np.exp(high)
    return Ranges(low=low, high=high, inside=np.asarray((low <= measured) & (measured <= high)))


def weighted_quantile(values: FloatArray, weight: FloatArray, share: float) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(cumulative, share)), values.size - 1)])


# --- rows to look at ---


def losses(report: SpeedupReport) -> list[PredictedPoint]:
    """Rows where speculation lost, or was predicted to lose."""
    return [row for row in report.predicted if row.point.speedup < 1.0 or row.speedup < 1.0]
