"""What the plan expects of the server that was seen: time per round, tokens per second, acceptance, each with a range.

Prices are those of `plan`, at the batch, context and depth that were seen, with the engine time and the CUDA graphs of
the server. Ranges are 80% ranges; a difference inside them is no finding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.catalog.accuracy import OWN, ROUNDS, price_class, price_errors
from specmargin.catalog.drafters import DraftChoice, find_acceptance, traffic_shifts
from specmargin.decisions.certainty import borrowed_routing
from specmargin.decisions.grid import Grid
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.errors import ParallelismError
from specmargin.formats import find_engine
from specmargin.limits import MAX_BATCH
from specmargin.prices.launches import Graph
from specmargin.prices.model import EngineTime
from specmargin.step import Step
from specmargin.verbs.doctor.seen import Seen
from specmargin.verbs.doctor.served import Served

DEEPEST = 8  # draft tokens that are considered, as `plan` does by default
_MOST_PROMPTS = 0.95  # of the time

# 80% ranges of absolute times, as logarithms, by how prices are known. Own steps and rounds of an H200: worst rounds of
# 14%, another host up to 17% (docs/results/rounds.md, measured-steps.md). Kernels of other GPUs: `laws` with an engine
# time that was fitted elsewhere were 14% off, 34% at worst (measured-steps.md). Scaled: its own spread is added by
# component. The datasheet is a lower bound: steps took up to 5 times as long (81% error, measured-steps.md).
_TIME_ERRORS = {OWN: (-0.15, 0.15), ROUNDS: (-0.18, 0.18), "kernels": (-0.25, 0.30), "scaled": (-0.25, 0.30)}
_TIME_ERRORS |= {"datasheet": (-0.1, 1.6), "llamacpp": (-0.3, 0.3)}


@dataclass(frozen=True, slots=True)
class Range:
    """Expected, and the ends of its 80% range."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(self.value * factor, self.low * factor, self.high * factor)

    def over(self, value: float) -> Range:
        """`value` divided by it."""
        return Range(value / self.value, value / self.high, value / self.low)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """At one batch and one context."""

    seen: Seen
    scenario: Scenario  # as configured
    choice: DraftChoice
    usual: Survival  # what the drafter reaches elsewhere, or as the user says
    default_time: EngineTime  # that of the same release with its default graphs
    batch: float
    batch_shown: bool

    # --- prices ---

    @cached_property
    def pricer(self) -> Pricer:
        """As configured, with the acceptance that was seen, or else the usual one."""
        return Pricer(replace(self.scenario, survival=self.survival))

    @property
    def survival(self) -> Survival:
        own = self.seen.survival
        return self.usual if own is None else own

    @property
    def depth(self) -> int:
        """As drafted; 0 where nothing is."""
        return (self.seen.depth or 0) if self.seen.drafts else 0

    @property
    def speculates(self) -> bool:
        """Whether speculation is configured."""
        of = self.seen.observation
        return of.speculates if of.speculates is not None else self.seen.drafts or bool(of.settings.method)

    @property
    def deepest(self) -> int:
        limit = self.scenario.drafter.max_depth
        return max(self.depth, DEEPEST if limit is None else min(DEEPEST, limit))

    def with_engine(self, time: EngineTime) -> Expected:
        """The same server with another engine time."""
        return replace(self, scenario=replace(self.scenario, engine_time=time))

    def at(self, batch: float) -> Expected:
        return replace(self, batch=batch)

    def with_survival(self, survival: Survival) -> Grid:
        return self.pricer.with_survival(survival).grid([self.batch], self.deepest)

    @cached_property
    def grid(self) -> Grid:
        return self.pricer.grid([self.batch], self.deepest)

    @property
    def decode_seconds(self) -> float:
        """Of a round, or of a plain step where speculation is not configured."""
        if not self.speculates:
            return float(self.grid.no_spec_seconds[0])
        return float(self.grid.round_seconds[0, self.depth])

    @property
    def goodput(self) -> float:
        """Tokens per second while decoding, as configured."""
        if not self.speculates:
            return float(self.grid.no_spec_goodput[0])
        return float(self.grid.goodput[0, self.depth])

    @property
    def no_spec_goodput(self) -> float:
        return float(self.grid.no_spec_goodput[0])

    def best_depth(self, survival: Survival | None = None) -> tuple[int, float]:
        """The best depth here and its tokens per second; 0 is an engine without speculation."""
        grid = self.grid if survival is None else self.with_survival(survival)
        setting = Setting.of(self.scenario, max_depth=self.deepest)
        speed = np.where(setting.allowed(grid), grid.goodput, 0.0)[0]
        speed[0] = grid.no_spec_goodput[0]
        return int(speed.argmax()), float(speed.max())

    # --- what is expected, with ranges ---

    @cached_property
    def _time_errors(self) -> tuple[float, float]:
        """Logarithms of the factors by which the time of a round may differ: prices, their components, routing."""
        low, high = _TIME_ERRORS[price_class(self.scenario.prices.name, self.scenario.device.name)]
        parts = [*self._component_errors(), self._routing_error()]
        return -math.hypot(low, *parts), math.hypot(high, *parts)

    def _component_errors(self) -> list[float]:
        step = Step.uniform(batch=self.batch, depth=self.depth, context=self.scenario.context)
        lines = self.pricer.verify(step).components
        total = sum(float(line.seconds) for line in lines)
        return [float(line.seconds) / total * float(line.spread) for line in lines]

    def _routing_error(self) -> float:
        if not borrowed_routing(self.scenario):
            return 0.0
        uniform = self.pricer.under_uniform_routing().grid([self.batch], self.deepest)
        return float(abs(np.log(uniform.round_seconds[0, self.depth] / self.grid.round_seconds[0, self.depth])))

    @cached_property
    def round_seconds(self) -> Range:
        """Between two steps of a sequence, with the prompts that are read between them."""
        low, high = self._time_errors
        share, least, most = self.prompt_share
        return Range(
            self.decode_seconds / (1.0 - share),
            self.decode_seconds * math.exp(low) / (1.0 - least),
            self.decode_seconds * math.exp(high) / (1.0 - most),
        )

    @property
    def committed(self) -> float:
        """Tokens per sequence and step: as seen, where that is known."""
        seen = self.seen
        if seen.observation.generated_tokens_per_second or not self.depth:
            return seen.committed
        return 1.0 + float(self.survival.up_to(self.depth).sum())

    @property
    def tokens_per_second(self) -> Range:
        return self.round_seconds.over(self.batch * self.committed)

    @property
    def tpot_seconds(self) -> Range:
        return self.round_seconds.times(1.0 / self.committed)

    @property
    def price_error(self) -> float:
        """How far the cost of drafts, beside a plain step, may be off, as a logarithm."""
        errors = price_errors(self.scenario.prices.name, self.scenario.device.name)
        return max(-errors.low, errors.high)

    @property
    def knows_scale(self) -> bool:
        """Whether absolute times are priced, and not a bound of them."""
        return price_class(self.scenario.prices.name, self.scenario.device.name) != "datasheet"

    # --- acceptance ---

    def usual_range(self, position: int = 1) -> Range:
        """Share of rounds in which this position is accepted."""
        low, high = self._shifts
        ends = [float(self.usual.shifted(shift, position).by_depth[-1]) for shift in (0.0, low, high)]
        return Range(*ends)

    def usual_length(self) -> Range:
        ends = [1.0 + float(self.usual.shifted(s, self.depth).by_depth.sum()) for s in (0.0, *self._shifts)]
        return Range(*ends)

    @property
    def _shifts(self) -> tuple[float, float]:
        """A curve of the user's own differs between texts as any other does."""
        low, high = self.usual.shift_range
        return (low, high) if low < 0.0 else traffic_shifts()

    # --- prompts ---

    @cached_property
    def prompt_share(self) -> tuple[float, float, float]:
        """Of the time: expected, least, most. Prompts alone take longer than prompts read beside decoding sequences."""
        of = self.seen.observation
        rate = of.prompt_tokens_per_second
        if not rate:
            return 0.0, 0.0, 0.0
        alone = max(round(of.prompt_tokens_per_request or self.scenario.context), 1)
        engine = find_engine(of.engine)
        chunk = of.settings.max_step_tokens or engine.batched_tokens(self.scenario.device)
        step = Step.uniform(batch=self.batch, depth=self.depth, context=self.scenario.context)
        beside = step.joined(Step.prompts(tokens=chunk))
        pricer = self.pricer
        added = float(pricer.verify(beside).total_seconds) - float(pricer.verify(step).total_seconds)
        central = rate * pricer.prefill_seconds(alone, speculating=self.speculates) / alone
        # Prompts alone are launched outside full graphs, on a host whose speed is not shown.
        time = self.scenario.engine_time
        slow = self.with_engine(time.with_launches(math.exp(time.launched.spread))).pricer
        most = max(rate * slow.prefill_seconds(alone, speculating=self.speculates) / alone, central)
        least = min(rate * max(added, 0.0) / chunk, central)
        ends = [min(share, _MOST_PROMPTS) for share in (math.sqrt(least * central), least, most)]
        return ends[0], ends[1], ends[2]

    # --- memory and graphs ---

    @property
    def fits(self) -> int | None:
        """Sequences with space for drafts as deep as configured; None where the weights alone do not fit."""
        depth = self.seen.observation.settings.depth or self.depth
        try:
            if not self.speculates:
                return self.pricer.no_spec_largest_batch
            return self.pricer.largest_batch(depth)
        except ParallelismError:
            return None

    @property
    def no_spec_fits(self) -> int | None:
        try:
            return self.pricer.no_spec_largest_batch
        except ParallelismError:
            return None

    @property
    def graph_limit(self) -> int | None:
        return self.scenario.engine_time.graph_limit

    @property
    def graphs(self) -> tuple[Graph, Graph]:
        """Of verification and of later draft passes."""
        time = self.scenario.engine_time
        return time.verify_graph, time.draft_graph


def expect(seen: Seen, served: Served) -> Expected | None:
    """None where model or GPU are not known."""
    request, scenario, choice = served.request, served.scenario, served.choice
    if scenario is None or choice is None or served.default_time is None:
        return None
    shown = request.batch if request.batch is not None else seen.batch
    return Expected(
        seen=seen,
        scenario=scenario,
        choice=choice,
        default_time=served.default_time,
        usual=find_acceptance(request.acceptance, choice, scenario.architecture),
        batch=min(max(shown or 1.0, 1.0), float(MAX_BATCH)),
        batch_shown=shown is not None,
    )
