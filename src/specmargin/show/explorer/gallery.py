"""Every figure of the page by name: its inputs, when it applies, and whether it is fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from specmargin.architecture.types import ExpertPool
from specmargin.caches import made_once
from specmargin.catalog.held_out_rounds import held_out_rounds
from specmargin.catalog.measured_points import measured_points
from specmargin.decisions.design import Space, explore
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.errors import InputError, nearest_names
from specmargin.modes import Hold
from specmargin.routing.tabulated import coverage_rows
from specmargin.show.explorer import day
from specmargin.show.explorer.uploads import Upload
from specmargin.show.explorer.view import View, read_rounds
from specmargin.show.figures import (
    acceptance,
    crossover,
    design,
    experts,
    ladder,
    ledger,
    pareto,
    payoff,
    roofline,
    validation,
)
from specmargin.show.figures.figure import Figure
from specmargin.show.figures.words import acceptance_source
from specmargin.step import FloatArray

if TYPE_CHECKING:
    from specmargin.acceptance.bank import Rounds
    from specmargin.acceptance.calibration import Tokens
    from specmargin.policies.study.ladder import LadderRow

_PAYS, _MOE, _ACCEPTANCE, _POLICIES = "Where it pays", "Experts", "Acceptance", "Policies"  # sections
_POSITIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)


class DoesNotApplyError(InputError):
    """The figure does not apply to this scenario; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    name: str
    title: str  # before it is drawn
    section: str
    draw: Callable[[View], Figure]
    lacks: Callable[[View], str | None]  # why it does not apply to a scenario, known without drawing it
    slow: bool = False  # over 0.1 s: drawn after the others, when scrolled into view
    wait: str = ""  # duration to confirm before drawing


GALLERY: dict[str, Entry] = {}


def _shown(
    name: str,
    title: str,
    *,
    section: str,
    lacks: Callable[[View], str | None] = lambda _: None,
    slow: bool = False,
    wait: str = "",
) -> Callable[[Callable[[View], Figure]], Callable[[View], Figure]]:
    """Enters the decorated function; the page shows figures in this order."""

    def enter(draw: Callable[[View], Figure]) -> Callable[[View], Figure]:
        GALLERY[name] = Entry(name=name, title=title, section=section, draw=draw, lacks=lacks, slow=slow, wait=wait)
        return draw

    return enter


def figure(name: str, view: View) -> Figure:
    if name not in GALLERY:
        raise InputError(f"no figure {name!r}{nearest_names(name, GALLERY)}; known: {', '.join(GALLERY)}")
    reason = GALLERY[name].lacks(view)
    if reason is not None:
        raise DoesNotApplyError(reason)
    return GALLERY[name].draw(view)


def absent_figures(view: View) -> list[str]:
    """Figures that do not apply to this scenario."""
    return [name for name, entry in GALLERY.items() if entry.lacks(view) is not None]


# --- what a scenario may lack ---


def _experts(view: View) -> str | None:
    architecture = view.scenario.architecture
    return None if architecture.is_moe else f"{architecture.name} is dense: it has no experts"


def _confidences(view: View) -> str | None:
    known = view.rounds is not None and view.rounds.has_confidence
    return None if known else "needs a bank of rounds with the drafter's confidences: drop one on the page"


def _rivals(view: View) -> str | None:
    return None if view.rivals is not None else "this model has no two drafters to compare"


# --- where it pays ---


@_shown("pareto", pareto.TITLE, section=_PAYS)
def _pareto(view: View) -> Figure:
    scenario = view.scenario
    machine = scenario.device.name, scenario.layout.gpus, scenario.weight_names
    measured = measured_points(scenario.architecture.name, *machine, scenario.drafter.name)
    return pareto.pareto_figure(view.pricer, view.setting, batch=view.batch, measured=measured)


@_shown("speedup", "Best draft depth and speed-up by batch", section=_PAYS)
def _speedup(view: View) -> Figure:
    return payoff.speedup_figure(view.pricer, view.setting, batch=view.batch)


@_shown("ledger", "The price of one more draft token", section=_PAYS)
def _ledger(view: View) -> Figure:
    return _by_setting(ledger.ledger_figure, view.pricer, view.setting)


@_shown("context", "Speed-up by batch and context", section=_PAYS)
def _context(view: View) -> Figure:
    return _by_setting(payoff.context_figure, view.pricer, view.setting)


@made_once(maxsize=24)
def _by_setting(draw: Callable[[Pricer, Setting], Figure], pricer: Pricer, setting: Setting) -> Figure:
    """A figure that another marked batch leaves as it is: pricers are kept, and equal only to themselves."""
    return draw(pricer, setting)


@_shown("crossover", "Two drafters compared", section=_PAYS, lacks=_rivals)
def _crossover(view: View) -> Figure:
    assert view.rivals is not None
    first, second = (view.with_drafter(kind).pricer for kind in view.rivals)
    return crossover.crossover_figure(first, second, max_depth=view.max_depth)


# --- experts ---


@_shown("roofline", "Arithmetic intensity by positions", section=_MOE)
def _roofline(view: View) -> Figure:
    return roofline.roofline_figure(view.scenario, batch=view.batch)


def _model(view: View) -> str:
    name = view.scenario.architecture.name
    return name if view.layer is None else f"{name}, layer {view.layer}"


def _pool(view: View) -> ExpertPool:
    return view.scenario.architecture.pools[0]


@_shown("coverage", "Distinct experts by positions", section=_MOE, lacks=_experts)
def _coverage(view: View) -> Figure:
    pool, routing = _pool(view), view.scenario.routing
    layer = view.layer
    local = routing.local(pool)
    if layer is not None and local is not None:
        layer = min(layer, local.layers - 1)
    return experts.coverage_figure(
        _model(view), routing.name, coverage_rows(pool, routing, _POSITIONS, layer), routing.source
    )


@_shown("popularity", "Popularity of experts", section=_MOE, lacks=_experts)
def _popularity(view: View) -> Figure:
    return experts.popularity_figure(_model(view), _pool(view), view.local_routing, view.scenario.routing.source)


@_shown("overlap", "Expert overlap of neighbours", section=_MOE, lacks=_experts)
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


@_shown("histogram", "Accepted draft tokens per round", section=_ACCEPTANCE)
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


@_shown("survival", "Survival by draft depth", section=_ACCEPTANCE)
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


def _bank(view: View) -> Upload:
    assert view.bank is not None
    return view.bank


@_shown("reliability", "Reliability of the drafter's confidence", section=_ACCEPTANCE, lacks=_confidences, slow=True)
def _reliability(view: View) -> Figure:
    bank = _bank(view)
    from specmargin.acceptance.calibration import Raw  # noqa: PLC0415 (SciPy: 0.4 s)

    judge, calibrated = _held_out(bank)
    sides = {"raw": Raw().probability(judge), "calibrated": calibrated}
    return acceptance.reliability_figure(
        sides, judge.accepted, drafter=_drafter_name(view), source=acceptance_source(view.scenario)
    )


@_shown("joint", "Predicted against accepted, round by round", section=_ACCEPTANCE, lacks=_confidences, slow=True)
def _joint(view: View) -> Figure:
    rounds = read_rounds(_bank(view))
    from specmargin.acceptance.calibration import Raw, survival_of  # noqa: PLC0415
    from specmargin.acceptance.estimate import joint_table  # noqa: PLC0415

    return acceptance.joint_figure(
        joint_table(rounds, survival_of(rounds, Raw())),
        drafter=_drafter_name(view),
        source=acceptance_source(view.scenario),
    )


@made_once(maxsize=4)
def _held_out(bank: Upload) -> tuple[Tokens, FloatArray]:
    """Tokens of the held-out half of the requests, and their probabilities calibrated on the other half."""
    import numpy as np  # noqa: PLC0415

    from specmargin.acceptance.calibration import Logistic, tokens_of  # noqa: PLC0415

    rounds = read_rounds(bank)
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


def _no_simulated_day(view: View) -> str | None:
    """Why a day cannot be simulated. Uncompiled it would take an hour, and a few minutes of it are not a day."""
    if find_spec("numba") is None:
        return "a simulated day needs Numba: pip install 'specmargin[fast]'"
    if view.scenario.early_stop is not None:
        return "simulated policies decide how long drafts are: leave out draft_p_min"
    return None


@_shown("day", "A simulated day", section=_POLICIES, lacks=_no_simulated_day, slow=True)
def _day(view: View) -> Figure:
    return day.simulated_day(view)


@_shown("policies", "Policies on the same simulated day", section=_POLICIES, lacks=_no_simulated_day, slow=True)
def _policies(view: View) -> Figure:
    return day.policies(view)


_CONCURRENCIES = (1, 4, 16, 64, 256)
_SEQUENCES = 1500  # per concurrency: a quarter of `profile acceptance --ladder`


@_shown(
    "ladder",
    "Gain of policies over the best fixed depth",
    section=_POLICIES,
    lacks=_confidences,
    slow=True,
    wait="half a minute",
)
def _ladder(view: View) -> Figure:
    rows = _ladder_rows(_bank(view), view.pricer)
    title = f"{view.scenario.architecture.name} on {view.scenario.device.name}, {view.scenario.drafter.name}"
    return ladder.ladder_figure(
        [asdict(row) | {"prices": title} for row in rows], source=acceptance_source(view.scenario)
    )


@made_once(maxsize=8)
def _ladder_rows(bank: Upload, pricer: Pricer) -> list[LadderRow]:
    """Every policy on the same batches of the bank, at the prices of the scenario."""
    from specmargin.policies.study.ladder import Contest  # noqa: PLC0415 (compiled, an extra)
    from specmargin.policies.study.ladder import ladder as replay_policies  # noqa: PLC0415
    from specmargin.policies.tables import scenario_table  # noqa: PLC0415

    rounds, every_graph = read_rounds(bank), pricer.with_every_graph()
    prices = scenario_table(every_graph, Setting(max_depth=rounds.depth), max_batch=max(_CONCURRENCIES))
    contest = Contest.of(rounds, seed=0)
    return list(replay_policies(contest, prices, concurrencies=_CONCURRENCIES, sequences=_SEQUENCES))


@_shown("design", "The same model with other experts", section="Other experts", lacks=_experts, slow=True)
def _design(view: View) -> Figure:
    if view.routing_file is not None:
        raise DoesNotApplyError(
            "variants need routing that scales to other experts: choose a bundled profile or uniform"
        )
    space = Space(
        hold=Hold.ACTIVE, experts=[64, 128, 256, 512], experts_per_token=[2, 4, 8, 16], shared_shares=(0.0, 0.25, 0.5)
    )
    return design.design_figure(explore(view.pricer, space, view.setting, batch=view.batch))


@_shown("validation", "Predicted against measured, whole rounds", section="Validation", slow=True)
def _validation(_: View) -> Figure:
    """Independent of the controls: it validates the prices."""
    return validation.rounds_figure(*held_out_rounds())
