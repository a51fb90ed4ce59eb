"""Which experts suit speculation at a target batch: number, experts per token, width and shared fraction.

Reshapes the experts of a model at equal active (or active and total) parameters and ranks the variants by speculative
goodput. Widths are multiples of 64; variants that are not equal within 2% are left out. Prices are laws where
available, because tables are more accurate for the model's own shape than for its variants.

Examples:

  specmargin design qwen3.6-35b-a3b --gpu h200 --batch 32 --plot design.png

  specmargin design qwen3.6-35b-a3b --gpu h200 --batch 128 --hold total
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Line, Table, bold, dim, left, right, sourced
from specmargin.answers.numbers_schema import listed, parse_shares
from specmargin.answers.outputs_schema import ChartOutputs
from specmargin.answers.request_schema import QUESTION, DepthField, ScenarioRequest
from specmargin.answers.verb import Progress, silent, tracked, verb
from specmargin.limits import MAX_BATCH
from specmargin.modes import Hold
from specmargin.sources import weakest

if TYPE_CHECKING:
    from specmargin.decisions.design import Design, DesignRow
    from specmargin.decisions.scenario import Scenario
    from specmargin.show.figures.figure import Chart

_SHOWN = 12
_EQUAL = {Hold.ACTIVE: "active", Hold.TOTAL: "active and total"}
_NOT_PREDICTED = "Acceptance and drafter are held equal; the quality of the variants is not predicted."
# Few pairs have equal total parameters, so more are tried.
_PER_TOKEN = {Hold.ACTIVE: (2, 4, 8, 16), Hold.TOTAL: tuple(range(1, 21))}
_SHARES = (0.0, 0.25, 0.5)
Shares = Annotated[tuple[float, ...], BeforeValidator(parse_shares)]


class DesignRequest(ScenarioRequest):
    unused: ClassVar[Mapping[str, str]] = {
        "placement": "no profile has the experts of variants, so their placement makes no difference"
    }

    batch: Annotated[int, Field(ge=1, le=MAX_BATCH, description="Target batch size."), QUESTION.as_("N")] = 32
    hold: Annotated[
        Hold,
        Field(description="active: equal active expert parameters; total: equal active and total expert parameters."),
        QUESTION.as_("WHAT"),
    ] = Hold.ACTIVE
    experts: Annotated[
        tuple[int, ...], listed(64), Field(description="Experts per layer to try."), QUESTION.as_("LIST")
    ] = (
        64,
        128,
        256,
        512,
    )
    experts_per_token: Annotated[
        tuple[int, ...] | None,
        listed(64),
        Field(description="Experts per token to try."),
        QUESTION.as_("LIST", "2,4,8,16; with --hold total 1-20"),
    ] = None
    shared: Annotated[
        Shares,
        Field(description="Fractions of the active width in shared experts to try; derived with --hold total."),
        QUESTION.as_("LIST", "0,0.25,0.5"),
    ] = ()
    depth: DepthField = 8


@verb(DesignRequest, outputs=ChartOutputs)
def design(request: DesignRequest, progress: Progress = silent) -> DesignAnswer:
    from specmargin.answers.scenarios import pricer_of
    from specmargin.catalog.lookup import find_device
    from specmargin.catalog.prices import law_book
    from specmargin.decisions.design import Space, explore
    from specmargin.decisions.setting import Setting

    space = Space(
        hold=request.hold,
        experts=request.experts,
        experts_per_token=request.experts_per_token or _PER_TOKEN[request.hold],
        shared_shares=request.shared if request.shared or request.hold is Hold.TOTAL else _SHARES,
    )
    prices = request.prices or ("datasheet" if law_book(find_device(request.gpu)) is None else "laws")
    pricer = pricer_of(request.model_copy(update={"prices": prices}))
    setting = Setting.of(pricer.scenario, max_depth=request.depth)
    watched = partial(tracked, progress, "variants")
    result = explore(pricer, space, setting, batch=request.batch, progress=watched)
    return DesignAnswer(request=request, design=result)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DesignAnswer(Answer[DesignRequest]):
    design: Design

    schema: ClassVar[str] = "specmargin.design/1"

    @property
    def scenario(self) -> Scenario:
        return self.design.scenario

    @property
    def verdict(self) -> str:
        design = self.design
        name, base = self.scenario.architecture.name, design.base
        if not design.fitting:
            return f"None of {len(design.rows)} variants of {name} fits at batch {design.batch}; try more --gpus."
        best, steepest = design.fitting[0], max(design.fitting, key=lambda row: row.speedup)
        over = _over_base(design, best)
        keep = "" if over > 1.0 else "No variant beats the unchanged model. Best variant: "
        return (
            f"{keep}{_experts(best)} experts, {best.shape.width} wide, {best.shape.shared_share:.0%} shared: "
            f"{best.goodput_tokens_per_second:,.0f} tokens/s at batch {design.batch}, "
            f"{over:.2f}× the unchanged {name}, with {_billions(best.parameters)} parameters instead of "
            f"{_billions(base.parameters)} (equal {_EQUAL[design.space.hold]}). Speculation gains most with "
            f"{_experts(steepest)}, {steepest.shape.shared_share:.0%} shared: {steepest.speedup:.2f}× instead of "
            f"{base.speedup:.2f}×."
        )

    def table(self) -> list[dict[str, Any]]:
        return [_row(self.design, row) for row in self.design.rows]

    def values(self) -> dict[str, Any]:
        design, scenario, sources = self.design, self.scenario, self.design.sources
        return {
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "gpus": scenario.layout.gpus,
            "batch": design.batch,
            "context": scenario.context,
            "drafter": scenario.drafter.name,
            "prices": scenario.prices.name,
            "routing": scenario.routing.name,
            "hold": design.space.hold,
            "note": _NOT_PREDICTED,
            "base": _row(design, design.base),
            "best": _row(design, design.fitting[0]) if design.fitting else None,
            "rows": self.table(),
            "left_out": design.left_out,
            "sources": {name: str(source) for name, source in sources.items()},
            "weakest_source": str(weakest(sources.values())),
        }

    def blocks(self) -> Iterator[Block]:
        from specmargin.decisions.design import STEP, TOLERANCE

        design, scenario = self.design, self.scenario
        shown = design.rows[:_SHOWN]
        yield bold(self.verdict)
        yield Line(_NOT_PREDICTED)
        yield GAP
        yield Table(
            title=f"{scenario.drafter.name} on {scenario.device.title}, batch {design.batch}, context "
            f"{scenario.context:.0f}, {scenario.prices.name} prices",
            columns=[
                *left("experts"),
                *right("width", "shared", "params", "active", "draft"),
                *right("tok/s", "× base", "plain", "speed-up", "distinct"),
            ],
            rows=[_cells(design, row) for row in (design.base, *shown)],
        )
        yield Line(f"first row: the unchanged model; then the best {len(shown)} of {len(design.rows)} variants")
        if not all(row.fits for row in shown):
            yield dim("(parentheses: does not fit in memory at this batch)")
        if design.left_out:
            yield dim(f"{design.left_out} more cannot match within {TOLERANCE:.0%} in steps of {STEP}")
        yield dim("shared: fraction of the active width; distinct: experts per layer in a verify step")
        yield GAP
        yield from sourced(design.sources)

    def chart(self) -> Chart:
        from specmargin.show.figures.design import design_figure

        return design_figure(self.design).chart()


def _row(design: Design, row: DesignRow) -> dict[str, Any]:
    return {
        "experts": row.shape.experts,
        "experts_per_token": row.shape.experts_per_token,
        "expert_width": row.shape.width,
        "shared_width": row.shape.shared_width,
        "shared_share": row.shape.shared_share,
        "parameters": row.parameters,
        "active_parameters": row.active_parameters,
        "depth": row.depth,
        "goodput_tokens_per_second": row.goodput_tokens_per_second,
        "goodput_over_base": _over_base(design, row),
        "no_spec_tokens_per_second": row.no_spec_tokens_per_second,
        "speedup": row.speedup,
        "distinct_experts": row.distinct_experts,
        "fits": row.fits,
    }


def _over_base(design: Design, row: DesignRow) -> float:
    return row.goodput_tokens_per_second / design.base.goodput_tokens_per_second


def _experts(row: DesignRow) -> str:
    return f"{row.shape.experts_per_token} of {row.shape.experts}"


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B"


def _cells(design: Design, row: DesignRow) -> tuple[str, ...]:
    parameters = _billions(row.parameters)
    return (
        _experts(row),
        str(row.shape.width),
        f"{row.shape.shared_share:.0%}",
        parameters if row.fits else f"({parameters})",
        _billions(row.active_parameters),
        str(row.depth),
        f"{row.goodput_tokens_per_second:,.0f}",
        f"{_over_base(design, row):.2f}",
        f"{row.no_spec_tokens_per_second:,.0f}",
        f"{row.speedup:.2f}×",
        f"{row.distinct_experts:.0f}",
    )
