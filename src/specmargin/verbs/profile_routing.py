"""Profile a capture of routed experts: popularity, locality and overlap by category.

Examples:

  specmargin profile routing bank/ --model MODEL -o mine.routing.json
  specmargin profile routing coding=runs/code prose=runs/prose --experts 256 -o mine.routing.json
  specmargin plan MODEL --gpu h200 --routing mine.routing.json:coding
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Line, Table, bold, dim, left, right
from specmargin.answers.outputs_schema import FILE, FileOutputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import Progress, silent, verb
from specmargin.architecture.types import Architecture, ExpertPool
from specmargin.catalog.lookup import find_model
from specmargin.errors import ScenarioError

if TYPE_CHECKING:
    from specmargin.routing.capture import Capture
    from specmargin.routing.schema import RoutingFile

_ENDING = ".routing.json"
_LAGS_SHOWN = 4


class ProfileRoutingRequest(Request):
    files: Annotated[
        tuple[str, ...],
        Field(
            description="Banks (a folder with routing.npy and routing_meta.parquet) or arrays of (tokens, layers, k) "
            "that an engine returned, one per request: PATH or CATEGORY=PATH, files or folders."
        ),
        Shown(argument=True),
    ]
    model: Annotated[
        str | None,
        Field(description="The captured model, which determines the number of experts."),
        Shown(metavar="MODEL"),
    ] = None
    experts: Annotated[
        int | None, Field(ge=1, description="Experts per layer, if no --model is given."), Shown(metavar="N")
    ] = None
    longest_run: Annotated[
        int, Field(ge=2, le=64, description="Longest run to count (returned arrays: 16)."), Shown(metavar="N")
    ] = 16
    source: Annotated[
        str | None,
        Field(description="Source recorded in the profile: model, drafter, conditions."),
        Shown(metavar="TEXT", default="the file names"),
    ] = None


class ProfileRoutingOutputs(FileOutputs):
    output: Annotated[
        Path | None, Field(description=f"Where to write NAME{_ENDING}."), FILE.named("--output", "-o")
    ] = None


# --- verb ---


@verb(ProfileRoutingRequest, outputs=ProfileRoutingOutputs)
def profile_routing(
    request: ProfileRoutingRequest, *, outputs: ProfileRoutingOutputs | None = None, progress: Progress = silent
) -> ProfileRoutingAnswer:
    import numba  # noqa: F401 (uncompiled, counting takes hours; a file from less would be noise that others plan with)

    from specmargin.routing.capture import open_captures
    from specmargin.routing.capture_profile import build_profile
    from specmargin.routing.counts import count

    outputs = outputs or ProfileRoutingOutputs()
    captures = open_captures(list(request.files))
    pool = _pool(captures[0], request)
    with progress("counting", sum(capture.positions for capture in captures)) as advance:
        counts = count(captures, experts=pool.experts, longest_run=request.longest_run, advance=advance)
    provenance = request.source or ", ".join(dict.fromkeys(capture.path.name for capture in captures))
    profile = build_profile(counts, name=outputs.stem(_ENDING) or "captured", pool=pool, provenance=provenance)
    return ProfileRoutingAnswer(request=request, profile=profile, output=outputs.output)


def _pool(capture: Capture, request: ProfileRoutingRequest) -> ExpertPool:
    _, k = capture.shape
    if request.model is None:
        if request.experts is None:
            raise ScenarioError("give the captured model (--model) or the experts per layer (--experts)")
        return ExpertPool(experts=request.experts, experts_per_token=k)
    architecture = find_model(request.model)
    if not architecture.pools:
        raise ScenarioError(f"{architecture.name} is dense: it has no experts to capture")
    _check_shape(architecture, capture)
    return ExpertPool(experts=architecture.pools[0].experts, experts_per_token=k)


def _check_shape(architecture: Architecture, capture: Capture) -> None:
    layers, k = capture.shape
    routed = sum(group.count for group, _ in architecture.expert_groups)
    experts_per_token = architecture.pools[0].experts_per_token
    if (layers, k) != (routed, experts_per_token):
        raise ScenarioError(
            f"{capture.path}: has {layers} layers with {k} experts per token; {architecture.name} has {routed} MoE "
            f"layers with {experts_per_token} experts per token"
        )


# --- answer ---


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProfileRoutingAnswer(Answer[ProfileRoutingRequest]):
    profile: RoutingFile
    output: Path | None

    schema: ClassVar[str] = "specmargin.profile-routing/1"

    @property
    def verdict(self) -> str:
        profile = self.profile
        rounds = sum(category.rounds for category in profile.categories.values())
        return (
            f"{rounds:,} rounds in {len(profile.categories)} categories, {profile.layers} layers, "
            f"{profile.experts_per_token} of {profile.experts} experts per token, runs up to {profile.longest_run} "
            "positions."
        )

    def values(self) -> dict[str, Any]:
        profile = self.profile
        return {
            "name": profile.name,
            "experts": profile.experts,
            "experts_per_token": profile.experts_per_token,
            "layers": profile.layers,
            "longest_run": profile.longest_run,
            "categories": {name: self._category(name) for name in profile.categories},
        }

    def _category(self, name: str) -> dict[str, Any]:
        profile, category = self.profile, self.profile.categories[name]
        return {
            "rounds": category.rounds,
            "positions": category.positions,
            "requests": category.requests,
            "depth": category.depth.model_dump(),
            "width": category.width.model_dump(),
            "overlap_by_lag": [fmean(by_layer) for by_layer in category.overlap_by_lag],
            "independent_overlap": self._independent_overlap(name),
            "uniform_overlap": profile.experts_per_token**2 / profile.experts,
            "decay": fmean(category.decay_by_layer),
        }

    def _independent_overlap(self, name: str) -> float:
        """Mean number of experts that two independent tokens share: Σ p², averaged over layers."""
        return float((self.profile.category(name).popularity_by_layer_expert ** 2).sum(axis=1).mean())

    def file_text(self) -> str:
        from specmargin.routing.schema import as_text

        return as_text(self.profile)

    def blocks(self) -> Iterator[Block]:
        yield bold(self.verdict)
        yield GAP
        yield self._distinct()
        yield GAP
        yield self._shared()
        yield dim("decay: popularity falls as exp(−decay · rank / experts)")
        if self.output is not None:
            yield Line(f"Wrote {self.output}")

    def _distinct(self) -> Table:
        longest = self.profile.longest_run
        numbers = ("rounds", "requests", f"one run of {longest}", f"{longest} independent", "uniform", "decay")
        return Table(
            title="distinct experts, mean of layers (± standard error over requests)",
            columns=[*left("category"), *right(*numbers)],
            rows=[self._distinct_cells(name) for name in self.profile.categories],
        )

    def _distinct_cells(self, name: str) -> list[str]:
        import numpy as np

        profile, category = self.profile, self.profile.categories[name]
        longest, share = profile.longest_run, profile.experts_per_token / profile.experts
        independent = float(profile.category(name).width_curve_by_layer(np.array([longest])).mean())
        return [
            name,
            f"{category.rounds:,}",
            f"{category.requests:,}",
            f"{category.depth.mean[-1]:.2f} ± {category.depth.standard_error[-1]:.2f}",
            f"{independent:.2f}",
            f"{profile.experts * (1.0 - (1.0 - share) ** longest):.2f}",
            f"{fmean(category.decay_by_layer):.2f}",
        ]

    def _shared(self) -> Table:
        k, lags = self.profile.experts_per_token, min(_LAGS_SHOWN, self.profile.longest_run - 1)
        rows = []
        for name, category in self.profile.categories.items():
            overlaps = [*map(fmean, category.overlap_by_lag[:lags]), self._independent_overlap(name)]
            rows.append([name, *(f"{value / k:.1%}" for value in overlaps), f"{k / self.profile.experts:.1%}"])
        return Table(
            title="experts shared by two positions, fraction of k",
            columns=[
                *left("category"),
                *right(*(f"lag {lag}" for lag in range(1, lags + 1)), "independent", "uniform"),
            ],
            rows=rows,
        )
