"""Compare one more sequence with one more draft token.

Both add one position to the step. The sequence commits a token for certain; the draft token with probability alpha, but
its experts may be loaded already. Defaults: a free drafter and no KV cache (--context 0).

Example: specmargin duel qwen3.6-35b-a3b --gpu h100 --batch 1 --alpha 0.9
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Table, bold, dim, left, right, sourced
from specmargin.answers.outputs_schema import ChartOutputs
from specmargin.answers.request_schema import LOAD, QUESTION, ContextField, DrafterField, ScenarioRequest
from specmargin.answers.verb import verb
from specmargin.limits import MAX_BATCH
from specmargin.words import UNVERIFIED, duration

if TYPE_CHECKING:
    from specmargin.decisions.duel import Duel, Side
    from specmargin.decisions.pricer import Pricer
    from specmargin.decisions.scenario import Scenario
    from specmargin.show.figures.figure import Chart


class DuelRequest(ScenarioRequest):
    unused: ClassVar[Mapping[str, str]] = {
        "acceptance": "--alpha is the acceptance of the one token in question",
        "draft_p_min": "the one token in question is always drafted",
        "off_ms": "no step with speculation configured but disabled is priced here",
    }

    alpha: Annotated[
        float, Field(ge=0, le=1, description="Probability that the draft token is accepted."), QUESTION.as_("P")
    ]
    batch: Annotated[int, Field(ge=1, le=MAX_BATCH, description="Sequences decoding already."), LOAD.as_("N")] = 1
    drafter: DrafterField = "free"
    context: ContextField = 0


@verb(DuelRequest, outputs=ChartOutputs, served=True)
def duel(request: DuelRequest) -> DuelAnswer:
    from specmargin.answers.scenarios import pricer_of
    from specmargin.decisions.duel import duel

    pricer = pricer_of(request)
    result = duel(pricer, batch=request.batch, alpha=request.alpha)
    return DuelAnswer(request=request, pricer=pricer, duel=result)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DuelAnswer(Answer[DuelRequest]):
    pricer: Pricer
    duel: Duel

    schema: ClassVar[str] = "specmargin.duel/1"

    @property
    def scenario(self) -> Scenario:
        return self.pricer.scenario

    @property
    def winner(self) -> str:
        return self.duel.winner

    @property
    def verdict(self) -> str:
        scenario, turning = self.scenario, self.duel.turning_alpha
        routing = f", {scenario.routing.name} routing" if scenario.architecture.is_moe else ""
        threshold = (
            f"depth wins above an acceptance of {turning:.3f}"
            if turning <= 1
            else "depth does not win at any acceptance"
        )
        return (
            f"{self.winner.capitalize()} wins: {scenario.architecture.name} on {scenario.device.name}, batch "
            f"{self.duel.batch}, acceptance {self.duel.alpha:g}{routing}; {threshold}."
        )

    def table(self) -> list[dict[str, Any]]:
        return [{"side": "width", **asdict(self.duel.width)}, {"side": "depth", **asdict(self.duel.depth)}]

    def values(self) -> dict[str, Any]:
        scenario, duel = self.scenario, self.duel
        return {
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "batch": duel.batch,
            "alpha": duel.alpha,
            "context": scenario.context,
            "routing": scenario.routing.name if scenario.architecture.is_moe else None,
            "width": asdict(duel.width),
            "depth": asdict(duel.depth),
            "unverified": {"label": UNVERIFIED, **asdict(duel.unverified)},
            "winner": duel.winner,
            "turning_alpha": duel.turning_alpha,
            "sources": {name: str(source) for name, source in self.pricer.step_sources.items()},
        }

    def blocks(self) -> Iterator[Block]:
        sides = {
            "sequence (width)": self.duel.width,
            "draft token (depth)": self.duel.depth,
            "draft token, unverified *": self.duel.unverified,
        }
        yield bold(self.verdict)
        yield GAP
        yield Table(
            columns=[*left("one more"), *right("tok/s", "distinct experts", "step")],
            rows=[[name, *_cells(side)] for name, side in sides.items()],
        )
        yield dim(f"* {UNVERIFIED}")
        yield GAP
        yield from sourced(self.pricer.step_sources)

    def chart(self) -> Chart:
        """Goodput of both sides."""
        from specmargin.show.figures.duel import duel_figure
        from specmargin.show.figures.words import step_source

        return duel_figure(self.table(), verdict=self.verdict, source=step_source(self.pricer)).chart()


def _cells(side: Side) -> list[str]:
    experts = "–" if side.distinct_experts is None else f"{side.distinct_experts:.2f}"
    return [f"{side.goodput_tokens_per_second:,.1f}", experts, duration(side.step_seconds)]
