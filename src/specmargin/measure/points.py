"""The points of a measurement, and the engine runs that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from specmargin.errors import InputError

Key = tuple[str, int, int, int, str]  # run, batch, depth, prompt length, kind


class Kind(StrEnum):
    NONE = "none"  # an engine without speculation
    OFF = "off"  # speculation configured, no drafts
    RANDOM = "strangers"  # forced drafts of random tokens: every position routes independently
    REPEATED = "alike"  # forced drafts that repeat the last token: with dummy weights, the same experts
    DRAFTED = "drafted"  # drafts of the configured drafter


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    batch: int
    depth: int
    context: int
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One start of an engine, and the points that are measured in it."""

    name: str
    kind: str  # none, forced or drafter
    drafts: int = 0
    counts: bool = False
    graphs: bool = False  # attach the expert counter before graphs are captured
    engine_args: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # over the user's
    points: tuple[Point, ...]

    def key(self, point: Point) -> Key:
        return self.name, point.batch, point.depth, point.context, str(point.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """The grid of batches, depths and contexts to measure."""

    batches: tuple[int, ...]
    depths: tuple[int, ...]
    contexts: tuple[int, ...]
    long_batches: tuple[int, ...] = ()  # batches of the further contexts: a few suffice for the price of attention

    def __post_init__(self) -> None:
        if not self.batches or not self.contexts:
            raise InputError("measure needs at least one batch and one context")
        if min((*self.batches, *self.contexts)) < 1 or min((*self.depths, 1)) < 1:
            raise InputError("batches, depths and contexts to measure start at 1 (no speculation is always measured)")

    @property
    def deepest(self) -> int:
        return max(self.depths, default=0)

    def batches_and_contexts(self) -> list[tuple[int, int]]:
        """Every batch at the first context, a few batches at the others."""
        first, *longer = self.contexts
        some = self.long_batches or self.batches[:: max(len(self.batches) // 3, 1)]
        return [(b, first) for b in self.batches] + [(b, c) for c in longer for b in some]

    def points(self, depths: Sequence[int], kinds: Sequence[Kind]) -> tuple[Point, ...]:
        return tuple(
            Point(batch=batch, depth=depth, context=context, kind=kind)
            for batch, context in self.batches_and_contexts()
            for depth in depths
            for kind in kinds
        )


def plain_run(surface: Surface) -> Run:
    """An engine without speculation. It runs first, because it tells which graphs the engine captures."""
    return Run(name="none", kind="none", points=surface.points((0,), (Kind.NONE,)))


def forced_runs(surface: Surface, *, full_graphs: bool, routes: bool) -> list[Run]:
    """With full graphs, one engine per depth (each graph has one depth), then one with piecewise graphs for all depths.

    The piecewise run counts the experts of an MoE model: a counter inside full graphs would slow the timed steps.
    """
    if not surface.depths:
        return []
    kinds = (Kind.RANDOM, Kind.REPEATED) if routes else (Kind.RANDOM,)
    off = surface.points((0,), (Kind.OFF,))
    all_points = off + surface.points(surface.depths, kinds)
    deepest = surface.deepest
    if not full_graphs:
        return [Run(name="forced", kind="forced", drafts=deepest, counts=routes, points=all_points)]
    by_depth = [
        Run(name=f"forced-{depth}", kind="forced", drafts=depth, points=surface.points((depth,), kinds))
        for depth in surface.depths
    ]
    by_depth[-1] = replace(by_depth[-1], points=off + by_depth[-1].points)
    pieces = Run(
        name="pieces",
        kind="forced",
        drafts=deepest,
        counts=routes,
        graphs=True,
        engine_args={"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
        points=all_points,
    )
    return [*by_depth, pieces] if routes else by_depth


def drafter_run(surface: Surface, speculative: dict[str, Any]) -> Run:
    """The configured drafter at every depth, and off."""
    return Run(
        name="drafter",
        kind="drafter",
        drafts=surface.deepest,
        counts=True,
        engine_args={"speculative_config": {**speculative, "num_speculative_tokens": surface.deepest}},
        points=surface.points((0,), (Kind.OFF,)) + surface.points(surface.depths, (Kind.DRAFTED,)),
    )


# Model runner and scheduling of the further engines: vLLM's defaults on a GPU first. All others run on the first runner
# with synchronous scheduling, which forced drafts need.
SCHEDULINGS = {"second-async": ("1", True), "async": ("0", True), "second": ("1", False)}
_FEW = 3  # batches suffice for what a scheduling takes per step and per sequence


def scheduling_runs(surface: Surface, speculative: dict[str, Any] | None) -> list[Run]:
    """Plain steps, and rounds of the drafter at the least and the largest depth, under every other scheduling."""
    few = tuple(surface.batches[:: max((len(surface.batches) - 1) // (_FEW - 1), 1)])
    small = replace(surface, batches=few, contexts=surface.contexts[:1])
    runs = []
    for name, (second, is_async) in SCHEDULINGS.items():
        settings = {"async_scheduling": is_async}
        environment = {"VLLM_USE_V2_MODEL_RUNNER": second}
        plain = small.points((0,), (Kind.NONE,))
        runs.append(
            Run(name=f"none-{name}", kind="served", engine_args=settings, environment=environment, points=plain)
        )
        if speculative is not None and surface.depths:
            drafted = small.points(sorted({surface.depths[0], surface.deepest}), (Kind.DRAFTED,))
            arguments = settings | {"speculative_config": {**speculative, "num_speculative_tokens": surface.deepest}}
            runs.append(
                Run(
                    name=f"drafter-{name}",
                    kind="drafter",
                    drafts=surface.deepest,
                    engine_args=arguments,
                    environment=environment,
                    points=drafted,
                )
            )
    return runs


def scheduling_of(run: str) -> str:
    """Of the name of a run; "" for the first runner with synchronous scheduling."""
    name = run.partition("-")[2]
    return name if name in SCHEDULINGS else ""


def other_scheduling(wanted: str, *, is_async: bool, runner: str) -> str:
    """Why the engine's steps are not those of the wanted scheduling; "" where they are."""
    second, wants_async = SCHEDULINGS.get(wanted, ("0", False))
    if wanted and is_async is not wants_async:
        return f"vLLM turned async scheduling {'on' if is_async else 'off'} for this model and drafter"
    if wanted and (".worker.gpu." in runner) is not (second == "1"):
        return f"vLLM runs this model and drafter with {runner}"
    return ""
