"""Every figure of the page by name: its inputs, when it applies, and whether it is fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from specmargin.architecture.types import ExpertPool
from specmargin.caches import made_once
from specmargin.catalog.held_out_rounds import held_out_rounds
from specmargin.decisions.design import Space, explore
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.errors import InputError, nearest_names
from specmargin.modes import Hold
from specmargin.routing.tabulated import coverage_rows
from specmargin.show.explorer import day
from specmargin.show.explorer.view import View
from specmargin.show.figures import acceptance, crossover, design, experts, ladder, ledger, payoff, roofline, validation
from specmargin.show.figures.figure import Figure
from specmargin.show.figures.words import acceptance_source
from specmargin.step import FloatArray

if TYPE_CHECKING:
    from specmargin.acceptance.bank import Rounds
    from specmargin.acceptance.calibration import Tokens
    from specmargin.policies.study.ladder import LadderRow

Value = TypeVar("Value")
_POSITIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)


class DoesNotApplyError(InputError):
    """The figure does not apply to this scenario; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    name: str
    title: str  # before it is drawn
    section: str
    draw: Callable[[View], Figure]
    slow: bool = False  # over 0.1 s: drawn after the others, when scrolled into view
    wait: str = ""  # duration to confirm before drawing


def figure(name: str, view: View) -> Figure:
    if name not in GALLERY:
        raise InputError(f"no figure {name!r}{nearest_names(name, GALLERY)}; known: {', '.join(GALLERY)}")
    return GALLERY[name].draw(view)


# --- where it pays ---


def _speedup(view: View) -> Figure:
    return payoff.speedup_figure(view.pricer, view.setting, batch=view.batch)


def _context(view: View) -> Figure:
    return _by_setting(payoff.context_figure, view.pricer, view.setting)


def _pareto(view: View) -> Figure:
    return _by_setting(payoff.pareto_figure, view.pricer, view.setting)


def _ledger(view: View) -> Figure:
    return _by_setting(ledger.ledger_figure, view.pricer, view.setting)


@made_once(maxsize=24)
def _by_setting(draw: Callable[[Pricer, Setting], Figure], pricer: Pricer, setting: Setting) -> Figure:
    """A figure that another marked batch leaves as it is: pricers are kept, and equal only to themselves."""
    return draw(pricer, setting)


def _crossover(view: View) -> Figure:
    if view.rivals is None:
        raise DoesNotApplyError("this model has no two drafters to compare")
    first, second = (view.with_drafter(kind).pricer for kind in view.rivals)
    return crossover.crossover_figure(first, second, max_depth=view.max_depth)


# --- experts ---


def _roofline(view: View) -> Figure:
    return roofline.roofline_figure(view.scenario, batch=view.batch)


def _model(view: View) -> str:
    name = view.scenario.architecture.name
    return name if view.layer is None else f"{name}, layer {view.layer}"


def _pool(view: View) -> ExpertPool:
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
    """All lags of a dropped capture, else the first lag, which every profile has."""
    local, k = view.local_routing, _pool(view).experts_per_token
    if view.routing_file is not None:
        from specmargin.routing.schema import read_routing  # noqa: PLC0415 (pydantic only where a file is read)

        category = next(iter(read_routing(view.routing_file.path).categories.values()))
        return [sum(by_layer) / len(by_layer) / k for by_layer in category.overlap_by_lag][:7]
    return [] if local is None else [float(local.neighbour_overlap_by_layer.mean()) / k]


# --- acceptance ---


def _drafter_name(view: View) -> str:
    return f"{view.bank.name}" if view.bank is not None else f"{view.scenario.drafter.name}"


def _histogram(view: View) -> Figure:
    rounds = view.rounds
    source = acceptance_source(view.scenario)
    if rounds is None:
        depth = max(view.max_depth, 1)
        return acceptance.histogram_figure(
            acceptance.accepted_shares(view.scenario.survival, depth), drafter=_drafter_name(view), source=source
        )
    from specmargin.acceptance.estimate import accepted_histogram  # noqa: PLC0415 (an extra)

    return acceptance.histogram_figure(accepted_histogram(rounds).tolist(), drafter=_drafter_name(view), source=source)


def _survival(view: View) -> Figure:
    curves = {"all": view.scenario.survival.up_to(max(view.max_depth, 1)).tolist()}
    if view.rounds is not None:
        curves = _by_category(view.rounds)
    elif view.bank is not None:
        from specmargin.acceptance.schema import read_acceptance  # noqa: PLC0415

        curves = {name: category.survival for name, category in read_acceptance(view.bank.path).categories.items()}
    named = {
        view.scenario.drafter.name if name == "all" and len(curves) == 1 else name: c for name, c in curves.items()
    }
    return acceptance.survival_figure(
        named, drafter=_drafter_name(view), source=acceptance_source(view.scenario), needed=_needed(view)
    )


def _needed(view: View) -> float | None:
    """The survival that one more token needs at the marked batch; None where it is no probability."""
    needed = float(view.next_tokens.hurdle[-1])
    return needed if 0.0 < needed <= 1.0 else None


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
    rounds = _with_confidence(view)
    from specmargin.acceptance.calibration import Raw  # noqa: PLC0415 (SciPy: 0.4 s)

    judge, calibrated = _held_out(_ById(rounds))
    sides = {"raw": Raw().probability(judge), "calibrated": calibrated}
    return acceptance.reliability_figure(
        sides, judge.accepted, drafter=_drafter_name(view), source=acceptance_source(view.scenario)
    )


def _joint(view: View) -> Figure:
    rounds = _with_confidence(view)
    from specmargin.acceptance.calibration import Raw, survival_of  # noqa: PLC0415
    from specmargin.acceptance.estimate import joint_table  # noqa: PLC0415

    return acceptance.joint_figure(
        joint_table(rounds, survival_of(rounds, Raw())),
        drafter=_drafter_name(view),
        source=acceptance_source(view.scenario),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _ById(Generic[Value]):
    """A cache key that compares a value by identity."""

    value: Value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.value is self.value


@made_once(maxsize=4)
def _held_out(bank: _ById[Rounds]) -> tuple[Tokens, FloatArray]:
    """Tokens of the held-out half of the requests, and their probabilities calibrated on the other half."""
    import numpy as np  # noqa: PLC0415

    from specmargin.acceptance.calibration import Logistic, tokens_of  # noqa: PLC0415

    rounds = bank.value
    requests = np.unique(rounds.prompt_by_round)
    if requests.size < 2:
        raise DoesNotApplyError(
            "needs a bank of at least two requests, to calibrate on one half and evaluate on the other"
        )
    half = np.random.default_rng(0).permutation(requests)[: requests.size // 2]
    tokens = tokens_of(rounds)
    in_half = np.isin(rounds.prompt_by_round, half)[tokens.round]
    judge = tokens.chosen(~in_half)
    return judge, Logistic.fit(tokens.chosen(in_half), depths=rounds.depth).probability(judge)


# --- policies, design, evidence ---

_CONCURRENCIES = (1, 4, 16, 64, 256)
_SEQUENCES = 1500  # per concurrency: a quarter of `profile acceptance --ladder`


def _ladder(view: View) -> Figure:
    rows = _ladder_rows(_ById(_with_confidence(view)), view.pricer)
    title = f"{view.scenario.architecture.name} on {view.scenario.device.name}, {view.scenario.drafter.name}"
    return ladder.ladder_figure(
        [asdict(row) | {"prices": title} for row in rows], source=acceptance_source(view.scenario)
    )


@made_once(maxsize=8)
def _ladder_rows(bank: _ById[Rounds], pricer: Pricer) -> list[LadderRow]:
    """Every policy on the same batches of the bank, at the prices of the scenario."""
    from specmargin.policies.study.ladder import Contest  # noqa: PLC0415 (compiled, an extra)
    from specmargin.policies.study.ladder import ladder as replay_policies  # noqa: PLC0415
    from specmargin.policies.tables import scenario_table  # noqa: PLC0415

    prices = scenario_table(
        pricer.with_every_graph(), Setting(max_depth=bank.value.depth), max_batch=max(_CONCURRENCIES)
    )
    return list(
        replay_policies(Contest.of(bank.value, seed=0), prices, concurrencies=_CONCURRENCIES, sequences=_SEQUENCES)
    )


def _simulated(draw: Callable[[View], Figure], view: View) -> Figure:
    if view.scenario.early_stop is not None:
        raise DoesNotApplyError("simulated policies decide how long drafts are: leave out draft_p_min")
    return draw(view)


def _design(view: View) -> Figure:
    _pool(view)
    if view.routing_file is not None:
        raise DoesNotApplyError(
            "variants need routing that scales to other experts: choose a bundled profile or uniform"
        )
    space = Space(
        hold=Hold.ACTIVE, experts=[64, 128, 256, 512], experts_per_token=[2, 4, 8, 16], shared_shares=(0.0, 0.25, 0.5)
    )
    return design.design_figure(explore(view.pricer, space, view.setting, batch=view.batch))


def _rounds() -> Figure:
    """Independent of the controls: it validates the prices."""
    return validation.rounds_figure(*held_out_rounds())


GALLERY: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(name="speedup", title="Best draft depth and speed-up by batch", section="Where it pays", draw=_speedup),
        Entry(name="ledger", title="The price of one more draft token", section="Where it pays", draw=_ledger),
        Entry(name="context", title="Speed-up by batch and context", section="Where it pays", draw=_context),
        Entry(name="pareto", title="Goodput against the speed of one sequence", section="Where it pays", draw=_pareto),
        Entry(name="crossover", title="Two drafters compared", section="Where it pays", draw=_crossover),
        Entry(name="roofline", title="Arithmetic intensity by positions", section="Experts", draw=_roofline),
        Entry(name="coverage", title="Distinct experts by positions", section="Experts", draw=_coverage),
        Entry(name="popularity", title="Popularity of experts", section="Experts", draw=_popularity),
        Entry(name="overlap", title="Expert overlap of neighbours", section="Experts", draw=_overlap),
        Entry(name="histogram", title="Accepted draft tokens per round", section="Acceptance", draw=_histogram),
        Entry(name="survival", title="Survival by draft depth", section="Acceptance", draw=_survival),
        Entry(
            name="reliability",
            title="Reliability of the drafter's confidence",
            section="Acceptance",
            draw=_reliability,
            slow=True,
        ),
        Entry(
            name="joint",
            title="Predicted against accepted, round by round",
            section="Acceptance",
            draw=_joint,
            slow=True,
        ),
        Entry(
            name="day",
            title="A simulated day",
            section="Policies",
            draw=partial(_simulated, day.simulated_day),
            slow=True,
        ),
        Entry(
            name="policies",
            title="Policies on the same simulated day",
            section="Policies",
            draw=partial(_simulated, day.policies),
            slow=True,
        ),
        Entry(
            name="ladder",
            title="Gain of policies over the best fixed depth",
            section="Policies",
            draw=_ladder,
            slow=True,
            wait="half a minute",
        ),
        Entry(
            name="design", title="The same model with other experts", section="Other experts", draw=_design, slow=True
        ),
        Entry(
            name="validation",
            title="Predicted against measured, whole rounds",
            section="Validation",
            draw=lambda _: _rounds(),
            slow=True,
        ),
    )
}
