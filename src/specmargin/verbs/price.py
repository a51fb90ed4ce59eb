"""The cost of one step: seconds, bytes and FLOPs by component, and the cost of one more position.

With --depth, the drafter's passes are listed below the verify step.

Example: specmargin price deepseek-v4-flash --gpu b200 --batch 8 --depth 2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Line, Table, bold, dim, left, right, sourced, warned
from specmargin.answers.outputs_schema import ChartOutputs
from specmargin.answers.request_schema import FULL_DRAFTS, LOAD, NO_ACCEPTANCE, NO_OFF_TIME, BatchField, ScenarioRequest
from specmargin.answers.verb import verb
from specmargin.limits import MAX_DEPTH
from specmargin.words import UNVERIFIED, amount, duration

if TYPE_CHECKING:
    from specmargin.decisions.ledger import Ledger
    from specmargin.decisions.scenario import Scenario
    from specmargin.decisions.unverified import UnverifiedRound
    from specmargin.prices.model import ComponentPrice
    from specmargin.show.figures.figure import Chart


class PriceRequest(ScenarioRequest):
    unused: ClassVar[Mapping[str, str]] = {
        "acceptance": NO_ACCEPTANCE,
        "draft_p_min": FULL_DRAFTS,
        "off_ms": NO_OFF_TIME,
    }

    batch: BatchField = 1
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH, description="Draft tokens per sequence."), LOAD.as_("N")] = 0


@verb(PriceRequest, outputs=ChartOutputs, served=True)
def price(request: PriceRequest) -> PriceAnswer:
    from specmargin.answers.scenarios import pricer_of
    from specmargin.decisions.ledger import Ledger

    ledger = Ledger.of(pricer_of(request), batch=request.batch, depth=request.depth)
    return PriceAnswer(request=request, ledger=ledger)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PriceAnswer(Answer[PriceRequest]):
    ledger: Ledger

    schema: ClassVar[str] = "specmargin.price/1"

    @property
    def scenario(self) -> Scenario:
        return self.ledger.pricer.scenario

    @property
    def verdict(self) -> str:
        batch, depth, verify = self.request.batch, self.request.depth, self.ledger.verify_seconds
        share = self.ledger.marginal_seconds / (verify / (batch * (depth + 1)))
        return (
            f"A step of {batch} sequences × {depth + 1} positions takes {duration(verify)}; one more position adds "
            f"{duration(self.ledger.marginal_seconds)}, {share:.0%} of the average position."
        )

    def table(self) -> list[dict[str, Any]]:
        """One row per component of the verify step."""
        return [_line(line, added) for line, added in self.ledger.components]

    def values(self) -> dict[str, Any]:
        scenario, request, ledger, bound = self.scenario, self.request, self.ledger, self.ledger.bound
        drafted = () if ledger.drafting is None else ledger.drafting.components
        return {
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "gpus": scenario.layout.gpus,
            "parallel": scenario.layout.name,
            "batch": request.batch,
            "depth": request.depth,
            "context": scenario.context,
            "distinct_experts": ledger.distinct_experts,
            "components": self.table(),
            "total_seconds": ledger.verify_seconds,
            "draft": {
                "drafter": scenario.drafter.name,
                "components": [_line(line, None) for line in drafted],
                "total_seconds": ledger.draft_seconds,
            },
            "round_seconds": ledger.round_seconds,
            "unverified": None if bound is None else {"label": UNVERIFIED, **bound.values()},
            "prices": scenario.prices.name,
            "warnings": list(ledger.warnings),
            "sources": {name: str(source) for name, source in ledger.pricer.step_sources.items()},
        }

    def blocks(self) -> Iterator[Block]:
        scenario, ledger = self.scenario, self.ledger
        columns = [*left("component"), *right("time", "share", "bytes", "FLOPs")]
        yield bold(self.verdict)
        yield GAP
        yield Table(
            title=f"verify step on {scenario.device.title}, {scenario.prices.name} prices",
            columns=[*columns, *right("one more position"), *left("bound by")],
            rows=[
                [*_cells(line, ledger.verify_seconds), duration(added), str(line.resource())]
                for line, added in ledger.components
            ],
        )
        if ledger.drafting is not None:
            yield GAP
            yield Table(
                title=f"drafting {self.request.depth} with {scenario.drafter.name}",
                columns=[*columns, *left("bound by")],
                rows=[
                    [*_cells(line, ledger.draft_seconds), str(line.resource())] for line in ledger.drafting.components
                ],
            )
            yield Line(
                f"draft {duration(ledger.draft_seconds)}, verify {duration(ledger.verify_seconds)}, "
                f"round {duration(ledger.round_seconds)}"
            )
        if ledger.bound is not None:
            yield dim(_unverified(ledger.bound))
        yield GAP
        if ledger.warnings:
            yield from warned(ledger.warnings)
            yield GAP
        yield from sourced(ledger.pricer.step_sources)

    def chart(self) -> Chart:
        from specmargin.show.figures.step import step_figure

        return step_figure(
            self.ledger.pricer,
            batch=self.request.batch,
            depth=self.request.depth,
            components=self.ledger.components,
            drafting=self.ledger.drafting,
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
        f"unverified ({UNVERIFIED}): {bound.drafted + 1:g} tokens per sequence in {took}, {bound.speedup:.2f}× no "
        f"speculation; verification takes {seconds}, {bound.verification_share:.0%} of the round"
    )
