"""Every figure of the page by name: what it is drawn from, when it applies, and whether it is quick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from specmargin.errors import InputError, nearest_names
from specmargin.explorer.view import View
from specmargin.figures import acceptance, crossover, experts, ledger, payoff, roofline
from specmargin.figures.figure import Figure
from specmargin.figures.words import acceptance_source
from specmargin.routing.tabulated import coverage_rows

if TYPE_CHECKING:
    from specmargin.acceptance.bank import Rounds
    from specmargin.acceptance.calibration import Tokens

_POSITIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
_LAYERS_MEAN = "the mean layer"


class DoesNotApplyError(InputError):
    """There is nothing to draw, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    name: str
    section: str
    draw: Callable[[View], Figure]
    slow: bool = False  # over a tenth of a second: drawn after the others, when it comes into sight


def figure(name: str, view: View) -> Figure:
    if name not in GALLERY:
        raise InputError(f"no figure {name!r}{nearest_names(name, GALLERY)}; known: {', '.join(GALLERY)}")
    return GALLERY[name].draw(view)


# --- where it pays ---


def _speedup(view: View) -> Figure:
    return payoff.speedup_figure(view.scenario, batch=view.batch, max_depth=view.max_depth, limit=view.limit)


def _context(view: View) -> Figure:
    return payoff.context_figure(view.scenario, max_depth=view.max_depth, limit=view.limit)


def _pareto(view: View) -> Figure:
    return payoff.pareto_figure(view.scenario, max_depth=view.max_depth, limit=view.limit)


def _ledger(view: View) -> Figure:
    return ledger.ledger_figure(view.scenario, max_depth=view.max_depth, limit=view.limit)


def _crossover(view: View) -> Figure:
    if view.rivals is None:
        raise DoesNotApplyError("there are no two drafters to compare")
    first, second = (view.with_drafter(kind).scenario for kind in view.rivals)
    return crossover.crossover_figure(first, second, max_depth=view.max_depth, limit=view.limit)


# --- experts ---


def _roofline(view: View) -> Figure:
    return roofline.roofline_figure(view.scenario, batch=view.batch)


def _model(view: View) -> str:
    name = view.scenario.architecture.name
    return name if view.layer is None else f"{name}, layer {view.layer}"


def _pool(view: View) -> experts.ExpertPool:
    pools = view.scenario.architecture.pools
    if not pools:
        raise DoesNotApplyError(f"{view.scenario.architecture.name} is dense: it has no experts")
    return pools[0]


def _coverage(view: View) -> Figure:
    pool, routing = _pool(view), view.scenario.routing
    layer = view.layer
    local = routing.local(pool)
    if layer is not None and local is not None:
        layer = min(layer, local.layers - 1)
    return experts.coverage_figure(
        _model(view), routing.name, coverage_rows(pool, routing, _POSITIONS, layer), routing.source
    )


def _popularity(view: View) -> Figure:
    return experts.popularity_figure(_model(view), _pool(view), view.local_routing, view.scenario.routing.source)


def _overlap(view: View) -> Figure:
    pool, local = _pool(view), view.local_routing
    return experts.overlap_figure(_model(view), pool, local, _by_lag(view), view.scenario.routing.source)


def _by_lag(view: View) -> list[float]:
    """Where a capture was dropped all its lags, else the one that every profile knows."""
    local, k = view.local_routing, _pool(view).experts_per_token
    if view.routing_file is not None:
        from specmargin.routing.schema import read_routing  # noqa: PLC0415 (pydantic only where a file is read)

        found = next(iter(read_routing(view.routing_file.path).categories.values()))
        return [sum(by_layer) / len(by_layer) / k for by_layer in found.overlap_by_lag][:7]
    return [] if local is None else [float(local.neighbour_overlap_by_layer.mean()) / k]


# --- acceptance ---


def _of(view: View) -> str:
    return f"{view.bank.name}" if view.bank is not None else f"{view.scenario.drafter.name}"


def _histogram(view: View) -> Figure:
    rounds = view.rounds
    source = acceptance_source(view.scenario)
    if rounds is None:
        depth = max(view.max_depth, 1)
        return acceptance.histogram_figure(
            acceptance.of_curve(view.scenario.survival, depth), of=_of(view), source=source
        )
    from specmargin.acceptance.estimate import accepted_histogram  # noqa: PLC0415 (an extra)

    return acceptance.histogram_figure(accepted_histogram(rounds).tolist(), of=_of(view), source=source)


def _survival(view: View) -> Figure:
    curves = {"all": view.scenario.survival.at(max(view.max_depth, 1)).tolist()}
    if view.rounds is not None:
        curves = _by_category(view.rounds)
    elif view.bank is not None:
        from specmargin.acceptance.schema import read_acceptance  # noqa: PLC0415

        curves = {name: found.survival for name, found in read_acceptance(view.bank.path).categories.items()}
    named = {
        view.scenario.drafter.name if name == "all" and len(curves) == 1 else name: c for name, c in curves.items()
    }
    return acceptance.survival_figure(
        named, of=_of(view), source=acceptance_source(view.scenario), hurdle=view.row.hurdle
    )


def _by_category(rounds: Rounds) -> dict[str, list[float]]:
    from specmargin.acceptance.estimate import product_limit  # noqa: PLC0415

    parts = {"all": rounds} | {name: rounds.of_category(name) for name in rounds.categories}
    return {name: product_limit(part).tolist() for name, part in parts.items()}


def _with_confidence(view: View) -> Rounds:
    rounds = view.rounds
    if rounds is None or not rounds.has_confidence:
        raise DoesNotApplyError("needs a bank of rounds with the drafter's confidences: drop one on the page")
    return rounds


def _reliability(view: View) -> Figure:
    from specmargin.acceptance.calibration import Raw  # noqa: PLC0415

    rounds = _with_confidence(view)
    judge, calibrated = _held_out(_Same(rounds))
    sides = {"raw": Raw().probability(judge), "calibrated": calibrated}
    return acceptance.reliability_figure(sides, judge.accepted, of=_of(view), source=acceptance_source(view.scenario))


def _joint(view: View) -> Figure:
    from specmargin.acceptance.calibration import Raw, survival_of  # noqa: PLC0415
    from specmargin.acceptance.estimate import joint_table  # noqa: PLC0415

    rounds = _with_confidence(view)
    return acceptance.joint_figure(
        joint_table(rounds, survival_of(rounds, Raw())), of=_of(view), source=acceptance_source(view.scenario)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A key for caches: the very same rounds."""

    rounds: Rounds

    def __hash__(self) -> int:
        return id(self.rounds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.rounds is self.rounds


@lru_cache(maxsize=4)
def _held_out(bank: _Same) -> tuple[Tokens, acceptance.FloatArray]:
    """Half of the requests to learn from, the others to judge: their tokens, and the calibrated probability of each."""
    import numpy as np  # noqa: PLC0415

    from specmargin.acceptance.calibration import Logistic, tokens_of  # noqa: PLC0415

    rounds = bank.rounds
    requests = np.unique(rounds.prompt_by_round)
    if requests.size < 2:
        raise DoesNotApplyError("needs a bank of two requests or more, to learn from one half and judge on the other")
    half = np.random.default_rng(0).permutation(requests)[: requests.size // 2]
    tokens = tokens_of(rounds)
    ours = np.isin(rounds.prompt_by_round, half)[tokens.round]
    judge = tokens.chosen(~ours)
    return judge, Logistic.fit(tokens.chosen(ours), depths=rounds.depth).probability(judge)


GALLERY: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(name="speedup", section="Where it pays", draw=_speedup),
        Entry(name="ledger", section="Where it pays", draw=_ledger),
        Entry(name="context", section="Where it pays", draw=_context),
        Entry(name="pareto", section="Where it pays", draw=_pareto),
        Entry(name="crossover", section="Where it pays", draw=_crossover),
        Entry(name="roofline", section="Experts", draw=_roofline),
        Entry(name="coverage", section="Experts", draw=_coverage),
        Entry(name="popularity", section="Experts", draw=_popularity),
        Entry(name="overlap", section="Experts", draw=_overlap),
        Entry(name="histogram", section="Acceptance", draw=_histogram),
        Entry(name="survival", section="Acceptance", draw=_survival),
        Entry(name="reliability", section="Acceptance", draw=_reliability, slow=True),
        Entry(name="joint", section="Acceptance", draw=_joint, slow=True),
    )
}
