"""The design space: the same model with other experts, and the speculative goodput of each variant at one batch.

Acceptance, drafter and everything except the experts stay the same. Model quality of the variants is not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import assert_never

from specmargin.architecture.variants import ExpertShape, reshaped, shape_of
from specmargin.decisions.plan import check_range
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.errors import ParallelismError, ScenarioError
from specmargin.limits import MAX_BATCH
from specmargin.modes import Hold
from specmargin.routing.profile import ModelRouting
from specmargin.sources import Source, assumed
from specmargin.step import Step

STEP = 64  # widths are multiples of it, as kernel tiles and published models are
TOLERANCE = 0.02  # relative difference that counts as equal: widths come in steps
_SHARE_TOLERANCE = 1 / 16  # largest difference between the shared share and the requested one
_MOST_EXPERTS = 4096

Wrapper = Callable[[Sequence[ExpertShape]], Iterable[ExpertShape]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The variants to try. With `Hold.TOTAL` the shared share follows from the other two and must not be given."""

    hold: Hold
    experts: Sequence[int]
    experts_per_token: Sequence[int]
    shared_shares: Sequence[float] = ()

    def __post_init__(self) -> None:
        check_range("--experts", self.experts, 1, _MOST_EXPERTS)
        check_range("--experts-per-token", self.experts_per_token, 1, _MOST_EXPERTS)
        if self.hold is Hold.TOTAL and self.shared_shares:
            raise ScenarioError(
                "--hold total fixes the shared share by experts and experts per token; leave out --shared"
            )
        if self.hold is Hold.ACTIVE and not self.shared_shares:
            raise ScenarioError("--shared needs at least one share, such as 0")
        for share in self.shared_shares:
            if not 0.0 <= share < 1.0:
                raise ScenarioError(f"--shared must lie in 0..1, below 1, got {share:g}")

    @property
    def combinations(self) -> int:
        return len(self.experts) * len(self.experts_per_token) * max(len(self.shared_shares), 1)

    def shapes(self, base: ExpertShape) -> tuple[ExpertShape, ...]:
        """Every variant whose parameters are equal to within 2%, with widths in steps of 64."""
        pairs = [(n, k) for n, k in product(self.experts, self.experts_per_token) if k < n]
        match self.hold:
            case Hold.ACTIVE:
                shapes = [_equal_active(base, n, k, share) for (n, k), share in product(pairs, self.shared_shares)]
            case Hold.TOTAL:
                shapes = [_equal_total(base, n, k) for n, k in pairs]
            case _:
                assert_never(self.hold)
        return tuple(dict.fromkeys(shape for shape in shapes if shape is not None))


def _equal_active(base: ExpertShape, experts: int, per_token: int, share: float) -> ExpertShape | None:
    width = _stepped((1.0 - share) * base.active_width / per_token)
    shared = _stepped(base.active_width - per_token * width) if share > 0 else 0
    shape = _shape(experts, per_token, width, shared)
    if shape is None or not _near(shape.active_width, base.active_width):
        return None
    return shape if abs(shape.shared_share - share) <= _SHARE_TOLERANCE else None


def _equal_total(base: ExpertShape, experts: int, per_token: int) -> ExpertShape | None:
    """k · width + shared and n · width + shared are both fixed, so their difference gives the width."""
    width = _stepped((base.total_width - base.active_width) / (experts - per_token))
    shared = _stepped(base.active_width - per_token * width)
    shape = _shape(experts, per_token, width, max(shared, 0))
    if shape is None or not _near(shape.active_width, base.active_width):
        return None
    return shape if _near(shape.total_width, base.total_width) else None


def _stepped(width: float) -> int:
    return STEP * round(width / STEP)


def _shape(experts: int, per_token: int, width: int, shared: int) -> ExpertShape | None:
    if width < STEP or shared < 0:
        return None
    return ExpertShape(experts=experts, experts_per_token=per_token, width=width, shared_width=shared)


def _near(value: float, target: float) -> bool:
    return abs(value / target - 1.0) <= TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignRow:
    """One variant at the target batch, at its own best depth."""

    shape: ExpertShape
    parameters: int
    active_parameters: int  # without the input embedding
    depth: int
    goodput_tokens_per_second: float
    no_spec_tokens_per_second: float
    distinct_experts: float
    fits: bool  # the batch, with memory for drafts of that depth

    @property
    def speedup(self) -> float:
        return self.goodput_tokens_per_second / self.no_spec_tokens_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Variants by speculative goodput, best first, beside the model as it is."""

    scenario: Scenario
    space: Space
    batch: int
    base: DesignRow
    rows: tuple[DesignRow, ...]
    sources: dict[str, Source]

    @property
    def fitting(self) -> tuple[DesignRow, ...]:
        return tuple(row for row in self.rows if row.fits)

    @property
    def left_out(self) -> int:
        """Combinations that cannot be built with equal parameters."""
        return self.space.combinations - len(self.rows)


def explore(pricer: Pricer, space: Space, setting: Setting, *, batch: int, progress: Wrapper = iter) -> Design:
    """Price every variant of the space at one batch, each at the best depth that the setting allows."""
    check_range("--batch", [batch], 1, MAX_BATCH)
    scenario = pricer.scenario
    if isinstance(scenario.routing, ModelRouting):
        raise ScenarioError(
            f"routing profile {scenario.routing.name} knows the experts of one model; "
            "variants need curves that scale: a bundled profile, or uniform"
        )
    base = shape_of(scenario.architecture)
    shapes = space.shapes(base)
    if not shapes:
        raise ScenarioError(
            f"no variant of these experts keeps {space.hold} parameters within {TOLERANCE:.0%} in steps of {STEP}; "
            "try other --experts and --experts-per-token"
        )
    rows = [design_row(scenario, shape, setting, batch=batch) for shape in progress(shapes)]
    return Design(
        scenario=scenario,
        space=space,
        batch=batch,
        base=design_row(scenario, base, setting, batch=batch),
        rows=tuple(sorted(rows, key=lambda row: -row.goodput_tokens_per_second)),
        sources=_sources(pricer),
    )


def _sources(pricer: Pricer) -> dict[str, Source]:
    """The sources of the model, except for routing: no variant was captured or trained."""
    sources, name = pricer.sources, pricer.scenario.architecture.name
    return sources | {
        "routing": assumed(f"scaled to the experts of every variant: {sources['routing'].detail}"),
        "variants": assumed(f"{name} with other experts; same drafter and acceptance, quality not predicted"),
    }


def design_row(scenario: Scenario, shape: ExpertShape, setting: Setting, *, batch: int) -> DesignRow:
    """The scenario's model with experts of this shape, whether or not it fits in memory."""
    architecture = reshaped(scenario.architecture, shape)
    variant = Pricer(replace(scenario, architecture=architecture))
    grid = variant.grid([batch], setting.max_depth)
    depth = int(setting.best_depths(grid)[0])
    distinct = variant.distinct_experts(Step.uniform(batch=batch, depth=depth, context=scenario.context))
    assert distinct is not None  # a reshaped model has experts
    return DesignRow(
        shape=shape,
        parameters=architecture.parameters,
        active_parameters=architecture.active_parameters(count_embedding=False),
        depth=depth,
        goodput_tokens_per_second=float(grid.goodput[0, depth]),
        no_spec_tokens_per_second=float(grid.no_spec_goodput[0]),
        distinct_experts=float(distinct),
        fits=_fits(variant, batch, depth),
    )


def _fits(variant: Pricer, batch: int, depth: int) -> bool:
    try:
        return variant.largest_batch(depth) >= batch
    except ParallelismError:  # the weights alone are too large
        return False
