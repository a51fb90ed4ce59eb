"""What is measured: points, and the engines that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from specmargin.errors import InputError

Key = tuple[str, int, int, int, str]  # of a point in a run: run, batch, depth, prompt, kind


class Kind(StrEnum):
    NONE = "none"  # an engine without speculation
    OFF = "off"  # speculation configured, no drafts
    STRANGERS = "strangers"  # forced drafts, drawn at random: every position routes for itself
    ALIKE = "alike"  # forced drafts, the last token again: with dummy weights, to the same experts
    DRAFTED = "drafted"  # the configured drafter's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    batch: int
    depth: int
    context: int
    kind: Kind

    def as_json(self) -> dict[str, Any]:
        return {"batch": self.batch, "depth": self.depth, "context": self.context, "kind": str(self.kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One engine, started once, and the points that are measured in it."""

    name: str
    kind: str  # none, forced or drafter
    drafts: int = 0
    counts: bool = False
    graphs: bool = False  # the counter must be in place before graphs are captured
    engine_args: dict[str, Any] = field(default_factory=dict)
    points: tuple[Point, ...]

    def key(self, point: Point) -> Key:
        return self.name, point.batch, point.depth, point.context, str(point.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """The grid that somebody asks for."""

    batches: tuple[int, ...]
    depths: tuple[int, ...]
    contexts: tuple[int, ...]
    long_batches: tuple[int, ...] = ()  # at contexts beyond the first: a few suffice for the price of attention

    def __post_init__(self) -> None:
        if not self.batches or not self.contexts:
            raise InputError("measure needs at least one batch and one context")
        if min((*self.batches, *self.contexts)) < 1 or min((*self.depths, 1)) < 1:
            raise InputError("batches, depths and contexts to measure start at 1 (no speculation is always measured)")

    @property
    def deepest(self) -> int:
        return max(self.depths, default=0)

    def places(self) -> list[tuple[int, int]]:
        """(batch, context): every batch at the first context, a few at the others."""
        first, *longer = self.contexts
        some = self.long_batches or self.batches[:: max(len(self.batches) // 3, 1)]
        return [(b, first) for b in self.batches] + [(b, c) for c in longer for b in some]

    def points(self, depths: Sequence[int], kinds: Sequence[Kind]) -> tuple[Point, ...]:
        return tuple(
            Point(batch=batch, depth=depth, context=context, kind=kind)
            for batch, context in self.places()
            for depth in depths
            for kind in kinds
        )


def plain_run(surface: Surface) -> Run:
    """No speculation at all; the first to run, for it says which graphs the engine has."""
    return Run(name="none", kind="none", points=surface.points((0,), (Kind.NONE,)))


def forced_runs(surface: Surface, *, full_graphs: bool, routes: bool) -> list[Run]:
    """Where full graphs exist for one depth only, an engine a depth; then one with graphs of pieces, for all depths.

    The one with pieces counts the experts of a model that routes: a counter inside full graphs would cost time there.
    """
    if not surface.depths:
        return []
    kinds = (Kind.STRANGERS, Kind.ALIKE) if routes else (Kind.STRANGERS,)
    off = surface.points((0,), (Kind.OFF,))
    everything = off + surface.points(surface.depths, kinds)
    deepest = surface.deepest
    if not full_graphs:
        return [Run(name="forced", kind="forced", drafts=deepest, counts=routes, points=everything)]
    each = [
        Run(name=f"forced-{depth}", kind="forced", drafts=depth, points=surface.points((depth,), kinds))
        for depth in surface.depths
    ]
    each[-1] = replace(each[-1], points=off + each[-1].points)
    pieces = Run(
        name="pieces",
        kind="forced",
        drafts=deepest,
        counts=routes,
        graphs=True,
        engine_args={"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
        points=everything,
    )
    return [*each, pieces] if routes else each


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
