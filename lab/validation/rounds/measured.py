"""Whole rounds of a real engine on a real GPU, drafting included: what they take beside their kernels.

Kernels are priced with uniform routing: the drafts were random tokens, and counted experts agree with it. What is left
is engine time: per step, per step with drafts, per sequence, per draft token, per draft pass, and while speculation is
off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from lab import DATA
from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.drafters import find_drafter
from specmargin.catalog.lookup import bundled_device, bundled_model
from specmargin.catalog.prices import find_prices
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.modes import RooflineForm
from specmargin.prices.drafters import FREE
from specmargin.prices.model import EngineTime
from specmargin.routing.profile import UNIFORM
from specmargin.sources import Source, SourceKind
from specmargin.step import BoolArray, FloatArray

GRAPH_LIMIT = 512  # positions of the largest CUDA graph in these runs
_FOLDER = DATA / "measurements"
_FILE = "vllm-0.32-h200-rounds.json"
#: Terms that are fitted, in this order.
TERMS = (
    "step_seconds",
    "sequence_seconds",
    "verify_step_seconds",
    "verify_sequence_seconds",
    "verify_token_seconds",
    "draft_pass_seconds",
    "off_step_seconds",
    "off_sequence_seconds",
)
LEFT_OUT = ", terms fitted without it"
_TOLERANCE = 0.04  # relative errors beyond it weigh less: kernels that are priced wrongly are not engine time


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRounds:
    """Measured rounds of one engine. Depth −1: an engine without speculation."""

    name: str
    model: str
    drafter: str
    batch: FloatArray
    depth: FloatArray
    context: FloatArray
    seconds: FloatArray

    @property
    def captured(self) -> BoolArray:
        return np.asarray(self.batch * (np.maximum(self.depth, 0.0) + 1.0) <= GRAPH_LIMIT)


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((_FOLDER / _FILE).read_text(encoding="utf-8"))
    return document


def measured_rounds(*, runner: str = "second", async_scheduling: bool = True) -> list[MeasuredRounds]:
    """The engines of this runner and scheduling; by default those of vLLM's own defaults."""
    chosen = [
        engine
        for engine in _document()["engines"]
        if engine["runner"] == runner and engine["async_scheduling"] == async_scheduling
    ]
    return [_rounds(engine, engine["name"]) for engine in chosen]


def earlier_rounds() -> MeasuredRounds:
    """15 rounds of another run, which no term is fitted to. Their drafts share experts: only depth 0 and 1 compare."""
    return _rounds(_document()["earlier"], "earlier run")


def conditions() -> str:
    """How these rounds were measured, in one line."""
    document = _document()
    return f"{document['engine']}; {document['gpu']}; drafts {document['drafts']}"


def _rounds(engine: dict[str, Any], name: str) -> MeasuredRounds:
    batch, depth, context, milliseconds = (
        np.array([row[key] for row in engine["rows"]], dtype=np.float64)
        for key in ("batch", "depth", "context", "round_ms")
    )
    return MeasuredRounds(
        name=name,
        model=engine["model"],
        drafter=engine["drafter"],
        batch=batch,
        depth=depth if engine["drafter"] else np.full(depth.shape, -1.0),
        context=context,
        seconds=milliseconds * 1e-3,
    )


# --- prices ---


def round_pricer(model: str, drafter: str, prices: str, engine_time: EngineTime) -> Pricer:
    device, target = bundled_device("h200"), bundled_model(model)
    spec = {"eagle3": f"eagle:{_FOLDER / f'eagle3-{model}.json'}", "mtp": "mtp"}.get(drafter)
    choice = FREE if spec is None else find_drafter(spec, target).drafter
    scenario = Scenario(
        architecture=target,
        device=device,
        prices=find_prices(prices, device, "vllm", RooflineForm.PER_COMPONENT),
        routing=UNIFORM,
        drafter=choice,
        survival=parse_acceptance("0"),
        engine_time=engine_time,
    )
    return Pricer(scenario)


def predicted_seconds(rounds: MeasuredRounds, prices: str, engine_time: EngineTime) -> FloatArray:
    pricer = round_pricer(rounds.model, rounds.drafter, prices, engine_time)
    deepest = int(max(rounds.depth.max(), 1.0))
    grid = pricer.grid(rounds.batch, deepest, rounds.context)
    index = np.maximum(rounds.depth, 0.0).astype(np.int64)
    by_depth = grid.round_seconds[np.arange(index.size), index]
    return np.asarray(np.where(rounds.depth < 0, grid.no_spec_seconds, by_depth))


# --- engine time ---


def fitted_engine_time(prices: str, rounds: list[MeasuredRounds] | None = None) -> EngineTime:
    """Terms with the least relative error on the rounds within the graph limit, none negative."""
    chosen = measured_rounds() if rounds is None else rounds
    features, unexplained, seconds = [], [], []
    for engine in chosen:
        inside = engine.captured
        kernels = predicted_seconds(engine, prices, EngineTime(graph_limit=None))
        features.append(_features(engine)[inside])
        unexplained.append((engine.seconds - kernels)[inside])
        seconds.append(engine.seconds[inside])
    scale = 1.0 / np.concatenate(seconds)
    matrix, target = np.concatenate(features) * scale[:, np.newaxis], np.concatenate(unexplained) * scale

    def residual(milliseconds: FloatArray) -> FloatArray:
        return np.asarray(matrix @ milliseconds * 1e-3 - target)

    fit = least_squares(
        residual,
        x0=np.full(len(TERMS), 0.1),
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=_TOLERANCE,
    )
    # A bound that holds leaves a fraction of a nanosecond.
    values: dict[str, Any] = {
        name: 0.0 if term < 1e-4 else float(term) * 1e-3 for name, term in zip(TERMS, fit.x, strict=True)
    }
    source = Source(kind=SourceKind.MEASURED, detail=f"{_document()['engine']}; {_document()['gpu']}")
    return EngineTime(**values, graph_limit=GRAPH_LIMIT, source=source)


def _features(rounds: MeasuredRounds) -> FloatArray:
    """How often each term occurs in a round, in the order of `TERMS`."""
    batch, depth = rounds.batch, rounds.depth
    drafting, off = depth > 0, depth == 0
    return np.stack(
        [
            np.ones_like(batch),
            batch,
            1.0 * drafting,
            batch * drafting,
            np.where(drafting, batch * depth, 0.0),
            np.where(drafting, depth, 0.0),
            1.0 * off,
            batch * off,
        ],
        axis=1,
    )


# --- report ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLine:
    """One line of the report: the rounds, the price source and its errors."""

    rounds: str
    source: str
    count: int
    median_error: float
    worst_error: float
    bias: float


def held_out_rounds(source: str) -> Iterator[tuple[MeasuredRounds, FloatArray]]:
    """Every engine, and what its rounds take by terms that were fitted to the other models."""
    engines = measured_rounds()
    for model in dict.fromkeys(engine.model for engine in engines):
        others = fitted_engine_time(source, [engine for engine in engines if engine.model != model])
        yield from ((engine, predicted_seconds(engine, source, others)) for engine in engines if engine.model == model)


def round_lines() -> Iterator[RoundLine]:
    """Every engine by a fit without its model, then all of them by the bundled terms."""
    engines = measured_rounds()
    for source in ("tables", "laws"):
        everything = fitted_engine_time(source)
        for model in dict.fromkeys(engine.model for engine in engines):
            held_out = fitted_engine_time(source, [engine for engine in engines if engine.model != model])
            of_model = [engine for engine in engines if engine.model == model]
            yield _line(f"{model}{LEFT_OUT}", source, of_model, held_out)
        yield _line("all three models, depth 0 and 1", source, engines, everything, deepest=1)
        yield _line("all three models, deeper", source, engines, everything, shallowest=2)
        yield _line("an earlier run, depth 0, 1 (not fitted)", source, [earlier_rounds()], everything, deepest=1)


def _line(
    name: str, source: str, engines: list[MeasuredRounds], time: EngineTime, *, shallowest: int = -1, deepest: int = 99
) -> RoundLine:
    errors = []
    for engine in engines:
        chosen = engine.captured & (engine.depth >= shallowest) & (engine.depth <= deepest)
        errors.append((predicted_seconds(engine, source, time) / engine.seconds - 1.0)[chosen])
    return round_line(name, source, np.concatenate(errors))


def round_line(name: str, source: str, error: FloatArray) -> RoundLine:
    return RoundLine(
        rounds=name,
        source=source,
        count=int(error.size),
        median_error=float(np.median(np.abs(error))),
        worst_error=float(np.abs(error).max()),
        bias=float(np.median(error)),
    )
