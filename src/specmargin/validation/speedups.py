"""Speed-ups that others measured and published, or your own, against predictions and against simple rules.

A row is a scenario (model, GPUs, engine, drafter, depth, batch, context) with its measured accept length and its
measured speed-up over no speculation. It is predicted with its own accept length, so that only prices are judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from specmargin.answers.request_schema import ScenarioRequest, read_request
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.routing_profiles import ASSUMED, SCALED, find_routing
from specmargin.decisions.certainty import SpeedupRange, step_inputs
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.unknowns import RoundLedger
from specmargin.errors import MissingExtraError, ParallelismError, ScenarioError, SpecmarginError
from specmargin.formats import find_engine
from specmargin.prices.accuracy import PriceErrors
from specmargin.step import FloatArray
from specmargin.validation.points_schema import PlainPoint, Point, Setup
from specmargin.validation.whole_requests import Loop, closed_loop, load_of

ALL = "all rows"
_NO_ERRORS = PriceErrors(low=0.0, high=0.0, source="")
_LONG_CONTEXT = 8192
_MOSTLY = 0.5  # share of the time from which on prompts, not decoding, decide a row

# --- predictions ---

Pricers = dict[tuple[Any, ...], Pricer]  # by what was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    point: Point
    pricer: Pricer
    no_spec_seconds: float  # per output token, with the prompts that a request waits for
    round_speedup: float  # of a round and its prompts, one after another
    datasheet_speedup: float  # a baseline: the bare datasheet, no engine time, the scaled curves of one model
    loop: Loop | None  # whole requests in a closed loop; None: decoding alone, or lengths unknown
    datasheet_seconds: float = math.nan  # as `no_spec_seconds`, of that baseline
    #: What is uncertain about its components and its routing: logarithms of factors on the speed-up, below and above.
    doubt: tuple[float, float] = (0.0, 0.0)

    @property
    def speedup(self) -> float:
        """Of the closed loop where the figure is of whole requests, else of a round over a plain step."""
        return self.round_speedup if self.loop is None else self.loop.speedup

    @property
    def prices(self) -> str:
        return self.pricer.scenario.prices.name

    @property
    def growth(self) -> dict[str, float]:
        """By how much of a plain step each component of the round exceeds it, the largest first; with prompts none."""
        grown = RoundLedger.of(self.pricer, float(self.point.batch), float(self.point.depth)).growth()
        plain = float(self.pricer.grid([self.point.batch], 0).no_spec_seconds[0])
        shares = {name: float(seconds) / plain for name, seconds in grown.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @property
    def is_prefill(self) -> bool:
        """Mostly prompts: an error of such a row says little about decoding."""
        return self.loop is not None and self.loop.prefill_share > _MOSTLY


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupReport:
    predicted: tuple[PredictedPoint, ...]
    refused: dict[str, str]  # by id: why the row could not be asked

    def divided(self, apart: Collection[str]) -> tuple[SpeedupReport, SpeedupReport]:
        """Without the rows of these sources, and those alone; what was refused stays with the first."""
        own, others = ([row for row in self.predicted if (row.point.source in apart) == side] for side in (True, False))
        return replace(self, predicted=tuple(others)), SpeedupReport(predicted=tuple(own), refused={})

    @property
    def refused_by_reason(self) -> dict[str, list[str]]:
        """Ids by reason, in the order of the file: many rows often lack the same thing."""
        ids: dict[str, list[str]] = {}
        for identity, reason in self.refused.items():
            ids.setdefault(reason, []).append(identity)
        return ids


def predict(points: Sequence[Point], folder: Path, advance: Callable[[int], object] = int) -> SpeedupReport:
    """Every point that can be asked. Models and GPUs are names, or paths relative to `folder`."""
    predicted, refused = [], {}
    pricers: Pricers = {}
    for point in points:
        try:
            predicted.append(_predict_point(point, folder, pricers))
        except MissingExtraError:  # no fault of the row: every row needs it, or many do
            raise
        except SpecmarginError as error:
            refused[point.id] = str(error)
        advance(1)
    return SpeedupReport(predicted=tuple(predicted), refused=refused)


def _predict_point(point: Point, folder: Path, pricers: Pricers) -> PredictedPoint:
    point.tokens_per_round  # noqa: B018 (refuses a row without one before anything is priced)
    pricer = pricer_of(point, folder, pricers, prices=None)
    no_spec_seconds, speedup = _round(pricer, point)
    datasheet_seconds, datasheet_speedup = _round(pricer_of(point, folder, pricers, prices="datasheet"), point)
    return PredictedPoint(
        point=point,
        pricer=pricer,
        no_spec_seconds=no_spec_seconds,
        round_speedup=speedup,
        datasheet_speedup=datasheet_speedup,
        datasheet_seconds=datasheet_seconds,
        loop=_loop(pricer, point) if point.of_whole_requests else None,
        doubt=_doubt(pricer, point),
    )


def _doubt(pricer: Pricer, point: Point) -> tuple[float, float]:
    """Beyond the errors of its kind of prices."""
    (inputs,) = step_inputs(pricer, _NO_ERRORS, [point.batch], [point.depth])
    sure = SpeedupRange.around(1.0, inputs)
    return math.log(sure.low), math.log(sure.high)


def _loop(pricer: Pricer, point: Point) -> Loop | None:
    """None without known lengths, or where the model does not fit on GPUs whose number had to be assumed."""
    engine = find_engine(point.engine)
    batched_tokens = engine.batched_tokens(pricer.scenario.device)
    load = load_of(point, batched_tokens, limits_per_rank=engine.limits_per_rank)
    try:
        return None if load is None else closed_loop(pricer, point, load)
    except (ParallelismError, ScenarioError):
        return None


def _round(pricer: Pricer, point: Point) -> tuple[float, float]:
    """Seconds per output token without speculation, and the speed-up of a round; prompts included in both."""
    grid = pricer.grid([point.batch], point.depth)
    plain, spec = float(grid.no_spec_seconds[0]), float(grid.round_seconds[0, point.depth]) / point.tokens_per_round
    if point.isl is not None and point.osl is not None:
        prompts = point.waiting_prompts / point.osl  # per output token
        plain += prompts * pricer.prefill_seconds(point.isl)
        spec += prompts * pricer.prefill_seconds(point.isl, speculating=True)
    return plain, plain / spec


def pricer_of(point: Point | PlainPoint, folder: Path, pricers: Pricers, *, prices: str | None) -> Pricer:
    """`prices`: the option; None: what a plan would take."""
    asked = {
        **_asked_setup(point, folder),
        **(_asked_drafts(point, folder) if isinstance(point, Point) else {"drafter": "ngram"}),
        "acceptance": "0",  # the row has its own accept length
        "prices": prices,
        "backend": point.backend if prices is None and point.engine == "llamacpp" else None,  # its kernels' own prices
        "engine_time": point.named_engine_time if prices is None else None,
    }
    key = tuple(asked.items())
    if key not in pricers:
        given = {name: value for name, value in asked.items() if value is not None}
        scenario = scenario_of(read_request(ScenarioRequest, given))[1]
        if (
            prices is not None and scenario.architecture.is_moe and scenario.routing.name == ASSUMED
        ):  # a baseline without what these rows settled
            scenario = replace(scenario, routing=find_routing(SCALED, scenario.architecture))
        pricers[key] = Pricer(scenario)
    return pricers[key]


def _asked_setup(point: Setup, folder: Path) -> dict[str, Any]:
    return {
        "model": _local(point.model, folder),
        "gpu": _local(point.gpu, folder),
        "gpus": point.gpus,
        "parallel": point.parallel,
        "engine": point.engine,
        "context": round(point.context),
        "weights": point.weights,
        "kv_cache": point.kv_cache,
        **point.placement,
        **({} if point.cpu is None else {"cpu": _local(point.cpu, folder)}),
    }


def _asked_drafts(point: Point, folder: Path) -> dict[str, Any]:
    drafter, colon, detail = point.drafter.partition(":")
    return {
        "drafter": f"{drafter}{colon}{_local(detail, folder) if detail else ''}",
        "draft_weights": point.draft_weights,
        "draft_vocabulary": point.draft_vocabulary,
    }


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
    rules = _rules(rows)
    measured = np.array([row.point.speedup for row in rows])
    return [
        _line(group, rule, predicted[members], measured[members])
        for group, members in grouped(rows)
        for rule, predicted in rules.items()
    ]


def grouped(rows: Sequence[PredictedPoint]) -> list[tuple[str, list[int]]]:
    """Groups by name, all rows first, and the places of their rows."""
    groups: dict[str, list[int]] = {ALL: list(range(len(rows)))}
    for index, row in enumerate(rows):
        for group in _groups(row):
            groups.setdefault(group, []).append(index)
    return sorted(groups.items(), key=lambda item: (item[0] != ALL, item[0]))


def median_errors(predicted: Sequence[float], rows: Sequence[PredictedPoint]) -> tuple[float, float]:
    """Median error and bias of these predictions of the rows' speed-ups."""
    error = np.array(predicted) / np.array([row.point.speedup for row in rows]) - 1.0
    return float(np.median(np.abs(error))), float(np.median(error))


def source_median(report: SpeedupReport) -> float:
    """Median over sources of each source's median error: every source counts once."""
    errors: dict[str, list[float]] = {}
    for row in report.predicted:
        errors.setdefault(row.point.source, []).append(abs(row.speedup / row.point.speedup - 1.0))
    return float(np.median([np.median(of_source) for of_source in errors.values()]))


def loop_errors(report: SpeedupReport) -> tuple[SpeedupLine, SpeedupLine] | None:
    """Rows of whole requests, predicted as a closed loop, and as rounds and prompts one after another."""
    rows = [row for row in report.predicted if row.loop is not None]
    if not rows:
        return None
    measured = np.array([row.point.speedup for row in rows])
    looped, rounds = (np.array(values) for values in zip(*((r.speedup, r.round_speedup) for r in rows), strict=True))
    return _line("whole requests", "closed loop", looped, measured), _line("whole requests", "rounds", rounds, measured)


def _rules(rows: Sequence[PredictedPoint]) -> dict[str, FloatArray]:
    """Specmargin, and three rules that anybody can apply to the same rows."""
    length = np.array([row.point.tokens_per_round for row in rows])
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
    kind = "MoE" if row.pricer.scenario.architecture.is_moe else "dense"
    yield kind
    yield f"{kind}, context {'below' if point.context < _LONG_CONTEXT else 'from'} 8k"
    yield f"GPU {Path(point.gpu).stem if '/' in point.gpu else point.gpu}"
    yield f"engine {point.engine}"
    yield f"drafter {point.drafter.partition(':')[0]}"
    yield f"prices {row.prices}"
    yield "1 GPU" if point.gpus == 1 else "2 or 3 GPUs" if point.gpus < 4 else "4 GPUs or more"
    yield "batch 1" if point.batch == 1 else "batch 2 to 16" if point.batch <= 16 else "batch over 16"


def _line(group: str, rule: str, predicted: FloatArray, measured: FloatArray) -> SpeedupLine:
    usable = np.isfinite(predicted)
    error = predicted[usable] / measured[usable] - 1.0
    rank = _rank_correlation(predicted[usable], measured[usable]) if _ranks(predicted[usable]) else None
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


def _rank_correlation(one: FloatArray, other: FloatArray) -> float:
    """Spearman's: of ranks, where equal values share their mean rank."""
    return float(np.corrcoef(_mean_ranks(one), _mean_ranks(other))[0, 1])


def _mean_ranks(values: FloatArray) -> FloatArray:
    _, position, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2.0)[position])


def _ranks(predicted: FloatArray) -> bool:
    return predicted.size >= 5 and np.unique(predicted).size > 1
