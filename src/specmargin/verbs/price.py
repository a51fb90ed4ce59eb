"""The cost of one step: seconds, bytes and FLOPs by component, and the cost of one more position.

With --depth, the drafter's passes are listed below the verify step.

Example: specmargin price deepseek-v4-flash --gpu b200 --batch 8 --depth 2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Line, Table, bold, dim, left, right, sourced, warned
from specmargin.answers.outputs_schema import ChartOutputs
from specmargin.answers.request_schema import (
    FULL_DRAFTS,
    LOAD,
    MAX_DEPTH,
    NO_ACCEPTANCE,
    NO_OFF_TIME,
    BatchField,
    ScenarioRequest,
)
from specmargin.answers.scenarios import scenario_of
from specmargin.answers.verb import verb
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import marginal_by_component, rounded_seconds
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.unverified import LABEL, UnverifiedRound, round_json, unverified_seconds
from specmargin.decisions.warnings import price_warnings
from specmargin.prices.drafters import round_seconds
from specmargin.prices.model import ComponentPrice, StepPrice
from specmargin.step import Step
from specmargin.words import amount, duration

if TYPE_CHECKING:
    from specmargin.figures.figure import Chart


class PriceRequest(ScenarioRequest):
    unused: ClassVar[Mapping[str, str]] = {
        "acceptance": NO_ACCEPTANCE,
        "draft_p_min": FULL_DRAFTS,
        "off_ms": NO_OFF_TIME,
    }

    batch: BatchField = 1
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH, description="Draft tokens per sequence."), LOAD.as_("N")] = 0


@verb(PriceRequest, outputs=ChartOutputs)
def price(request: PriceRequest) -> PriceAnswer:
    _, scenario = scenario_of(request)
    pricer = Pricer(scenario)
    pricer.check_memory()
    now, more = pricer.marginal(Step.uniform(batch=request.batch, depth=request.depth, context=scenario.context))
    drafting = pricer.draft_ledger(request.batch, request.depth)
    return PriceAnswer(request=request, pricer=pricer, now=now, more=more, drafting=drafting)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PriceAnswer(Answer[PriceRequest]):
    pricer: Pricer
    now: StepPrice
    more: StepPrice  # with one position more
    drafting: StepPrice | None

    schema: ClassVar[str] = "specmargin.price/1"

    @property
    def scenario(self) -> Scenario:
        return self.pricer.scenario

    # --- the step ---

    @property
    def verify_seconds(self) -> float:
        return float(self.now.total_seconds)

    @property
    def draft_seconds(self) -> float:
        return 0.0 if self.drafting is None else float(self.drafting.total_seconds)

    @property
    def round_seconds(self) -> float:
        return float(round_seconds(self.scenario.drafter, self.now.total_seconds, np.asarray(self.draft_seconds)))

    @property
    def marginal_seconds(self) -> float:
        """The time that one more position adds to the step."""
        ranks = self.scenario.layout.sequence_ranks
        return (float(self.more.total_seconds) - self.verify_seconds) / ranks

    @property
    def components(self) -> list[tuple[ComponentPrice, float]]:
        """Each component with the time that one more position adds to it."""
        ranks = self.scenario.layout.sequence_ranks
        added = marginal_by_component(self.now, self.more, positions=ranks)
        return [(line, rounded_seconds(float(seconds))) for line, seconds in added]

    @property
    def bound(self) -> UnverifiedRound | None:
        """The round without verification; None without drafts."""
        depth, scenario = self.request.depth, self.scenario
        if depth == 0:
            return None
        step = Step.uniform(batch=self.request.batch, depth=0, context=scenario.context)
        plain = self.pricer.verify(step).total_seconds
        return UnverifiedRound(
            depth=depth,
            drafted=float(depth),
            plain_seconds=float(plain),
            round_seconds=self.round_seconds,
            unverified_seconds=float(unverified_seconds(scenario.drafter, plain, np.asarray(self.draft_seconds))),
        )

    @property
    def verdict(self) -> str:
        batch, depth, verify = self.request.batch, self.request.depth, self.verify_seconds
        share = self.marginal_seconds / (verify / (batch * (depth + 1)))
        return (
            f"A step of {batch} sequences × {depth + 1} positions takes {duration(verify)}; one more position adds "
            f"{duration(self.marginal_seconds)}, {share:.0%} of the average position."
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        return price_warnings(self.pricer, batch=self.request.batch, depth=self.request.depth)

    # --- shown ---

    def table(self) -> list[dict[str, Any]]:
        """One row per component of the verify step."""
        return [_line(line, added) for line, added in self.components]

    def values(self) -> dict[str, Any]:
        scenario, request, bound = self.scenario, self.request, self.bound
        step = Step.uniform(batch=request.batch, depth=request.depth, context=scenario.context)
        distinct = self.pricer.distinct_experts(step)
        drafted = [] if self.drafting is None else [_line(line, None) for line in self.drafting.components]
        return {
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "gpus": scenario.layout.gpus,
            "parallel": str(scenario.layout.parallel),
            "batch": request.batch,
            "depth": request.depth,
            "context": scenario.context,
            "distinct_experts": None if distinct is None else float(distinct),
            "components": self.table(),
            "total_seconds": self.verify_seconds,
            "draft": {
                "drafter": scenario.drafter.name,
                "components": drafted,
                "total_seconds": self.draft_seconds,
            },
            "round_seconds": self.round_seconds,
            "unverified": None if bound is None else round_json(bound),
            "prices": scenario.prices.name,
            "warnings": list(self.warnings),
            "sources": {name: str(source) for name, source in self.pricer.step_sources.items()},
        }

    def blocks(self) -> Iterator[Block]:
        scenario = self.scenario
        columns = [*left("component"), *right("time", "share", "bytes", "FLOPs")]
        yield bold(self.verdict)
        yield GAP
        yield Table(
            title=f"verify step on {scenario.device.title}, {scenario.prices.name} prices",
            columns=[*columns, *right("one more position"), *left("bound by")],
            rows=[
                [*_cells(line, self.verify_seconds), duration(added), str(line.resource())]
                for line, added in self.components
            ],
        )
        if self.drafting is not None:
            yield GAP
            yield Table(
                title=f"drafting {self.request.depth} with {scenario.drafter.name}",
                columns=[*columns, *left("bound by")],
                rows=[[*_cells(line, self.draft_seconds), str(line.resource())] for line in self.drafting.components],
            )
            yield Line(
                f"draft {duration(self.draft_seconds)}, verify {duration(self.verify_seconds)}, "
                f"round {duration(self.round_seconds)}"
            )
        if self.bound is not None:
            yield dim(_unverified(self.bound))
        yield GAP
        if self.warnings:
            yield from warned(self.warnings)
            yield GAP
        yield from sourced(self.pricer.step_sources)

    def chart(self) -> Chart:
        from specmargin.figures.step import step_figure  # noqa: PLC0415 (an extra)

        return step_figure(
            self.pricer,
            batch=self.request.batch,
            depth=self.request.depth,
            components=self.components,
            drafting=self.drafting,
            verdict=self.verdict,
        ).chart()


def _line(line: ComponentPrice, marginal: float | None) -> dict[str, Any]:
    return {
        "name": str(line.component),
        "seconds": float(line.seconds),
        "bytes": float(line.bytes),
        "flops": float(line.flops),
        "marginal_seconds": marginal,
        "bound_by": str(line.resource()),
        "source": str(line.source),
    }


def _cells(line: ComponentPrice, total: float) -> list[str]:
    return [
        str(line.component),
        duration(float(line.seconds)),
        f"{float(line.seconds) / total:.0%}",
        amount(float(line.bytes), "B"),
        amount(float(line.flops), ""),
    ]


def _unverified(bound: UnverifiedRound) -> str:
    took, seconds = duration(bound.unverified_seconds), duration(bound.verification_seconds)
    return (
        f"unverified ({LABEL}): {bound.drafted + 1:g} tokens per sequence in {took}, {bound.speedup:.2f}× no "
        f"speculation; verification takes {seconds}, {bound.verification_share:.0%} of the round"
    )
