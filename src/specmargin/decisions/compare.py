"""Two price sources compared: the depth that each recommends, and what following the wrong one costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specmargin.decisions.grid import Grid
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The recommendation of one price source at one batch."""

    depth: int
    speedup: float
    speedup_of_the_other_depth: float  # of the other side's depth, under these prices
    verify_seconds: float

    @property
    def regret(self) -> float:
        """Share of goodput lost, under these prices, by following the other side; negative where that would gain."""
        return 1.0 - self.speedup_of_the_other_depth / self.speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What drafting adds to a component, relative to a whole step without drafts."""

    name: str  # of the component
    added: float
    other_added: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    batch: int
    ours: Side
    other: Side
    differences: tuple[Difference, ...]  # largest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    ours: Scenario
    other: Scenario
    rows: tuple[ComparedRow, ...]


def compare(ours: Pricer, other: Pricer, batches: Sequence[int], setting: Setting) -> Comparison:
    """The setting under our prices against the best depths under the other ones."""
    grids = [side.grid(batches, setting.max_depth) for side in (ours, other)]
    depths = [setting.depths(grids[0]), setting.best_depths(grids[1])]
    rows = []
    for i, batch in enumerate(batches):
        depth, other_depth = int(depths[0][i]), int(depths[1][i])
        rows.append(
            ComparedRow(
                batch=batch,
                ours=_side(grids[0], i, depth, other_depth, setting.configured),
                other=_side(grids[1], i, other_depth, depth, setting.configured),
                differences=_differences(ours, other, batch, depth or other_depth),
            )
        )
    return Comparison(ours=ours.scenario, other=other.scenario, rows=tuple(rows))


def _side(grid: Grid, i: int, depth: int, other_depth: int, configured: bool) -> Side:
    speedup = grid.speedup[i]
    if not configured:
        speedup[0] = 1.0
    return Side(
        depth=depth,
        speedup=float(speedup[depth]),
        speedup_of_the_other_depth=float(speedup[other_depth]),
        verify_seconds=float(grid.verify_seconds[i, depth]),
    )


def _differences(ours: Pricer, other: Pricer, batch: int, depth: int) -> tuple[Difference, ...]:
    sides = [_added(side, batch, max(depth, 1)) for side in (ours, other)]
    differences = [
        Difference(name=name, added=sides[0].get(name, 0.0), other_added=sides[1].get(name, 0.0))
        for name in dict.fromkeys([*sides[0], *sides[1]])
    ]
    return tuple(sorted(differences, key=lambda d: -abs(d.added - d.other_added)))


def _added(pricer: Pricer, batch: int, depth: int) -> dict[str, float]:
    """By component: seconds that drafts of this depth add, relative to a step without drafts."""
    context = pricer.scenario.context
    plain, deep = (pricer.verify(Step.uniform(batch=batch, depth=d, context=context)) for d in (0, depth))
    before = {line.component: float(line.seconds) for line in plain.components}
    plain_seconds = float(plain.total_seconds)
    after = {line.component: float(line.seconds) for line in deep.components}
    added = {str(name): (after.get(name, 0.0) - before.get(name, 0.0)) / plain_seconds for name in {**before, **after}}
    return added | {"drafting": float(pricer.draft_seconds(batch, depth, context)) / plain_seconds}
