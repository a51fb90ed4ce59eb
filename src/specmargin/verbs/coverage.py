"""Distinct experts by number of positions: independent tokens (width), or one run (depth).

Skew: popularity without locality. Uniform: neither. Under uniform routing all four agree.

Examples:

  specmargin coverage qwen3.6-35b-a3b --positions 1-16 --plot coverage.png

  specmargin coverage MODEL --routing mine.routing.json:coding=0.7,prose=0.3 --layer 3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Line, Table, bold, dim, right, sourced
from specmargin.answers.numbers_schema import listed
from specmargin.answers.outputs_schema import ChartOutputs
from specmargin.answers.request_schema import (
    FULL_DRAFTS,
    LOAD,
    NO_ACCEPTANCE,
    NO_OFF_TIME,
    QUESTION,
    BatchField,
    ScenarioRequest,
)
from specmargin.answers.verb import verb
from specmargin.errors import ScenarioError
from specmargin.limits import MAX_DEPTH

if TYPE_CHECKING:
    from specmargin.architecture.types import Architecture, ExpertPool
    from specmargin.decisions.amdahl import Amdahl
    from specmargin.decisions.scenario import Scenario
    from specmargin.routing.profile import RoutingProfile
    from specmargin.show.figures.figure import Chart


class CoverageRequest(ScenarioRequest):
    """Counting experts needs no prices: the rest of the scenario matters only with a GPU."""

    unused: ClassVar[Mapping[str, str]] = {
        "acceptance": NO_ACCEPTANCE,
        "drafter": "the experts of the target do not depend on the drafter",
        "draft_weights": "the experts of the target do not depend on the drafter",
        "draft_vocabulary": "the experts of the target do not depend on the drafter",
        "draft_p_min": FULL_DRAFTS,
        "draft_pass_ms": "drafting is not priced here",
        "off_ms": NO_OFF_TIME,
        "memory_utilization": "memory is not checked here",
    }

    gpu: Annotated[
        str,
        Field(description="Also price the experts on this GPU: their share of a step, by Amdahl's law."),
        QUESTION.as_("GPU", "none: nothing is priced"),
    ] = ""
    positions: Annotated[
        tuple[int, ...], listed(1024), Field(description="Numbers of positions: 1,2,4 or 1-16."), QUESTION.as_("LIST")
    ] = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256)
    layer: Annotated[
        int | None, Field(ge=0, description="One MoE layer (from 0) instead of the mean."), QUESTION.as_("N")
    ] = None
    batch: BatchField = 1
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="Draft tokens of that step."), LOAD.as_("N")] = 3

    @model_validator(mode="after")
    def _prices_need_a_gpu(self) -> CoverageRequest:
        priced_only = self.model_fields_set - {"model", "routing", "positions", "layer"}
        if not self.gpu and priced_only:
            option = f"--{min(priced_only).replace('_', '-')}"
            raise ValueError(f"{option} changes the cost of experts, not their number: add --gpu")
        return self


@verb(CoverageRequest, outputs=ChartOutputs, served=True)
def coverage(request: CoverageRequest) -> CoverageAnswer:
    from specmargin.catalog.lookup import find_model
    from specmargin.catalog.routing_profiles import find_routing
    from specmargin.decisions.amdahl import amdahl
    from specmargin.decisions.pricer import Pricer
    from specmargin.routing.tabulated import coverage_rows

    architecture = find_model(request.model)
    pool = expert_pool(architecture, request.layer)
    profile = find_routing(request.routing, architecture)
    if min(request.positions) < 1:
        raise ScenarioError("--positions must be at least 1")
    scenario = _scenario(request) if request.gpu else None
    return CoverageAnswer(
        request=request,
        architecture=architecture,
        pool=pool,
        profile=profile,
        rows_by_positions=coverage_rows(pool, profile, request.positions, request.layer),
        priced=scenario,
        split=None if scenario is None else amdahl(Pricer(scenario), batch=request.batch, depth=request.depth),
    )


def expert_pool(architecture: Architecture, layer: int | None) -> ExpertPool:
    groups = architecture.expert_groups
    if not groups:
        raise ScenarioError(f"{architecture.name} is dense: it has no experts to cover")
    routed = sum(group.count for group, _ in groups)
    if layer is not None and not 0 <= layer < routed:
        raise ScenarioError(f"--layer must lie in 0..{routed - 1}: {architecture.name} has {routed} MoE layers")
    return groups[0][1].pool  # every layer of a model has the same pool


def _scenario(request: CoverageRequest) -> Scenario:
    """With a free drafter: only the target's experts matter here."""
    from specmargin.answers.scenarios import scenario_of

    return scenario_of(request.model_copy(update={"drafter": "free", "acceptance": "1"}))[1]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CoverageAnswer(Answer[CoverageRequest]):
    architecture: Architecture
    pool: ExpertPool
    profile: RoutingProfile
    rows_by_positions: list[dict[str, Any]]
    priced: Scenario | None  # with a GPU
    split: Amdahl | None  # with a GPU

    schema: ClassVar[str] = "specmargin.coverage/1"

    @property
    def scenario(self) -> Scenario | None:
        return self.priced

    @property
    def half_coverage_positions(self) -> float:
        from specmargin.routing.coverage import half_coverage_positions

        return half_coverage_positions(self.pool)

    @property
    def experts_over_k(self) -> float:
        return self.pool.experts / self.pool.experts_per_token

    @property
    def verdict(self) -> str:
        pool = self.pool
        return (
            f"{self.architecture.name}: {pool.experts_per_token} of {pool.experts} experts per token. "
            f"{self._effective()}Half of them are covered by {self.half_coverage_positions:.1f} positions under "
            f"uniform routing; n/k is {self.experts_over_k:.1f}."
        )

    def _effective(self) -> str:
        import numpy as np

        local = self.profile.local(self.pool)
        if local is None:
            return ""
        run = float(local.captured_run)
        independent = float(local.effective_positions(np.array([run]))[0])
        return f"A run of {run:.0f} positions touches as many as {independent:.1f} independent tokens. "

    def table(self) -> list[dict[str, Any]]:
        return self.rows_by_positions

    def values(self) -> dict[str, Any]:
        return {
            "model": self.architecture.name,
            "routing": self.profile.name,
            "layer": self.request.layer,
            "experts": self.pool.experts,
            "experts_per_token": self.pool.experts_per_token,
            "positions": self.rows_by_positions,
            "half_coverage_positions": self.half_coverage_positions,
            "experts_over_k": self.experts_over_k,
            "sources": {"routing": str(self.profile.source), "model": str(self.architecture.source)},
            "amdahl": self.split and asdict(self.split),
        }

    def resolved(self) -> dict[str, Any]:
        return {"routing": self.profile.name}

    def blocks(self) -> Iterator[Block]:
        rows, split = self.rows_by_positions, self.split
        layers = "mean of layers" if self.request.layer is None else f"layer {self.request.layer}"
        yield bold(self.verdict)
        yield GAP
        yield Table(
            title=f"distinct experts, {layers}, routing: {self.profile.name}",
            columns=right("positions", "width", "depth", "skew", "uniform", "± stdev", "depth / uniform"),
            rows=[_cells(row) for row in rows],
        )
        if any(row["extrapolated"] for row in rows):
            yield dim("*: longer than any captured run; extrapolated")
        yield GAP
        if split is not None:
            yield Line(
                f"Routed experts take {split.expert_share:.0%} of a plain step at batch {split.batch}; drafts of "
                f"{split.depth} touch {split.expert_ratio:.2f}× the experts. By Amdahl's law the step takes "
                f"{split.predicted_ratio:.2f}× as long; with growth of all components, {split.priced_ratio:.2f}×."
            )
            yield GAP
        yield from sourced({"routing": self.profile.source, "model": self.architecture.source})

    def chart(self) -> Chart:
        from specmargin.show.figures.experts import coverage_figure

        name, profile = self.architecture.name, self.profile
        return coverage_figure(name, profile.name, self.rows_by_positions, profile.source).chart()


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        str(row["positions"]),
        f"{row['width']:.2f}",
        f"{row['depth']:.2f}{'*' if row['extrapolated'] else ''}",
        f"{row['skew']:.2f}",
        f"{row['uniform']:.2f}",
        f"{row['uniform_stdev']:.2f}",
        f"{row['depth'] / row['uniform']:.0%}",
    ]
