"""What is timed of llama.cpp, and the points and rows of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from specmargin.errors import InputError
from specmargin.measure.points import Kind, Point
from specmargin.measure.records import Records

MIN_POINTS = 6  # that a fit needs (`measure/fit.py`, which imports NumPy)
STEPS, DRAFTER = "steps", "drafter"  # runs: without speculation, and with it
Watcher = Callable[[str, int, int], None]  # the run, its number of timings, and how many are done


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The request to `measure llamacpp`."""

    model: str
    weights: str
    options: str
    positions: tuple[int, ...]  # of one sequence in one step
    batches: tuple[int, ...]  # sequences that decode together
    contexts: tuple[int, ...]
    tokens: int = 16  # per timing of plain decoding
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if min((*self.positions, *self.batches, *self.contexts), default=0) < 1:
            raise InputError("measure llamacpp needs positions, batches and contexts of at least 1")
        least, alone = 2 * MIN_POINTS, len(self.contexts) * len({1, *self.positions})
        if alone < least:
            raise InputError(
                f"--positions: {alone} points of one sequence are too few to fit half of them and check the others; "
                f"give at least {least} positions, such as 1 to 16, or more --contexts"
            )

    def header(self) -> dict[str, Any]:
        """Settings that must be equal for a measurement to be resumed. The grid may grow."""
        return {"engine": "llamacpp", **{name: getattr(self, name) for name in ("model", "weights", "options")}}

    def plain(self) -> list[Point]:
        return [Point(batch=b, depth=0, context=c, kind=Kind.NONE) for c in self.contexts for b in self.batches]

    def verified(self) -> list[Point]:
        """More positions of one sequence: what a verify step computes."""
        several = [count for count in self.positions if count > 1]
        return [Point(batch=1, depth=n - 1, context=c, kind=Kind.RANDOM) for c in self.contexts for n in several]

    @property
    def slot_tokens(self) -> int:
        """Tokens that a slot must hold."""
        return max(self.contexts) + max(self.positions) + 4 * self.tokens + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Timings of a run by point, kept in the records as they come, so that an interrupted run goes on."""

    records: Records
    run: str

    def seconds(self, point: Point) -> list[float]:
        mine = [row for row in self.records.rows() if row["run"] == self.run]
        found = [row for row in mine if (row["batch"], row["depth"], row["prompt"]) == _place(point)]
        return list(found[0]["samples"]) if found else []

    def add(self, point: Point, seconds: Iterable[float], **more: Any) -> None:
        samples = [*self.seconds(point), *(float(f"{value:.6g}") for value in seconds)]
        quartiles = statistics.quantiles(samples * 2 if len(samples) == 1 else samples, n=4, method="inclusive")
        low, middle, high = (float(f"{value:.6g}") for value in quartiles)
        self.records.append(
            {
                "record": "row",
                "run": self.run,
                "batch": point.batch,
                "depth": point.depth,
                "kind": str(point.kind),
                "context": float(point.context),
                "prompt": point.context,
                "seconds": middle,
                "low_seconds": low,
                "high_seconds": high,
                "whole_seconds": middle,
                "draft_seconds": 0.0,
                "committed": float(point.batch),
                "steps": len(samples),
                "graph": "none",
                "distinct": None,
                "samples": samples,
                **more,
            }
        )


def _place(point: Point) -> tuple[int, int, int]:
    return point.batch, point.depth, point.context
