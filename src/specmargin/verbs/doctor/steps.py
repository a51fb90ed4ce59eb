"""Causes of slow steps: CUDA graphs, host, GPU, experts.

A setting that costs time by its price is a cause only as far as the steps that were seen leave room for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from specmargin.formats import find_engine
from specmargin.live.observation import Moment
from specmargin.prices.launches import Graph
from specmargin.prices.model import EngineTime
from specmargin.prices.work import ROUTED
from specmargin.step import Step
from specmargin.verbs.doctor.expected import Expected
from specmargin.verbs.doctor.finding import Case, Finding
from specmargin.verbs.doctor.served import told_graph
from specmargin.words import duration

LEAST_GAIN = 0.03  # smaller ones are within what two benchmarks differ by
_SLOW_CLOCK = 0.6  # of the largest: an H200 under load keeps 0.76 of its own (docs/results/measured-steps.md)
_WAITING_GPU = 0.7  # of the time in which a kernel runs
_MORE_LOAD = 3.0  # by which batches must differ to tell a constant per step from a factor
_MORE_TIME = 1.4  # by which their expected times must
_LEAST_MOMENTS = 4
_MOST_FACTOR = 4.0  # of a slow GPU or of wide routing; above, a constant that fits as well is enough
_SOME_FIT = 1.0
_BETTER_FIT = 0.5  # of squared residuals
_WIDER = 1.15  # distinct experts over those of the profile


def fitted(case: Case) -> Expected | None:
    """With launches as slow as fits what was seen, within their range: a host's own speed is not shown."""
    now, took = case.expected, case.seen.round_seconds
    if now is None or took is None or not now.batch_shown:
        return now
    spread = now.scenario.engine_time.launched.spread
    factors = [math.exp(spread * part / 4.0) for part in range(-4, 5)] if spread else [1.0]
    each = [now.with_engine(now.scenario.engine_time.with_launches(factor)) for factor in factors]
    return min(each, key=lambda one: abs(math.log(one.round_seconds.value / took)))


def _gain(case: Case, change: Callable[[EngineTime], EngineTime], *, sure: bool = True) -> float | None:
    """Of another engine time, priced, and no more than was seen; None where it is not worth naming.

    `sure`: what is changed was read from the server; else it must also explain some of the time that was seen.
    """
    now, took = fitted(case), case.seen.round_seconds
    if now is None:
        return None
    better = now.with_engine(change(now.scenario.engine_time))
    gain = case.gain(better.goodput, now.goodput) or 0.0
    if took is not None and better.batch_shown:
        due = better.round_seconds
        gain = min(gain, took / (due.low if sure else due.value) - 1.0)
    return gain if gain >= LEAST_GAIN else None


def _with_graphs_of(other: EngineTime) -> Callable[[EngineTime], EngineTime]:
    return lambda time: replace(time, **{name: getattr(other, name) for name in _GRAPHS})


_GRAPHS = (
    "graph_limit",
    "plain_graph",
    "verify_graph",
    "prompt_graph",
    "first_draft_graph",
    "draft_graph",
    "draft_launches",
)


# --- graphs ---


def graphs(case: Case) -> Finding | None:
    """The first that holds: eager, beyond the graphs, piecewise, drafting without graphs."""
    return _eager(case) or _beyond(case) or _piecewise(case) or _draft_graphs(case)


def _eager(case: Case) -> Finding | None:
    told, expected = told_graph(case.settings), case.expected
    if told not in (Graph.EAGER, Graph.COMPILED):
        return None
    known = expected is not None and expected.default_time.kernel_launch_seconds > 0.0
    gain = None
    if expected is not None and known:
        gain = _gain(case, _with_graphs_of(expected.default_time))
        if gain is None:
            return None
    elif told is not Graph.EAGER:
        return None  # some machines have no graphs at all
    how = "in eager mode" if told is Graph.EAGER else f"without CUDA graphs ({case.settings.graph_mode or 'no graph'})"
    return Finding(
        id="eager",
        title="Steps run without CUDA graphs",
        evidence=(f"the server was started {how}: every kernel of a round is launched by the host",),
        gain=gain,
        fix=case.fix("eager"),
    )


def _beyond(case: Case) -> Finding | None:
    expected = case.expected
    limit = case.settings.largest_graph or (None if expected is None else expected.graph_limit)
    positions = _positions(case)
    if not limit or positions is None or positions <= limit:
        return None
    gain = None
    if expected is not None:
        told = case.settings.largest_graph is not None
        gain = _gain(case, lambda time: replace(time, graph_limit=None), sure=told)
        if gain is None:
            return None
    elif case.settings.largest_graph is None:
        return None
    shown = "" if case.settings.largest_graph else f", {case.title}'s default"
    depth = case.seen.depth or 0
    return Finding(
        id="beyond-graphs",
        title="Steps are larger than the largest CUDA graph",
        evidence=(
            f"{positions / (depth + 1):.0f} sequences × {depth + 1} positions = {positions:.0f} per step; the largest "
            f"graph has {limit}{shown}",
        ),
        gain=gain,
        fix=find_engine(case.of.engine).larger_graphs(positions=positions, batch=case.seen.batch or 1.0),
        sure=case.settings.largest_graph is not None,
    )


def _positions(case: Case) -> float | None:
    expected = case.expected
    if expected is None:
        return case.seen.positions
    if not expected.batch_shown:
        return None
    ranks = expected.scenario.layout.sequence_ranks
    return math.ceil(expected.batch / ranks - 1e-6) * (expected.depth + 1.0)


def _piecewise(case: Case) -> Finding | None:
    expected = case.expected
    if expected is None or expected.graphs[0] is not Graph.PIECEWISE:
        return None
    told = told_graph(case.settings) is Graph.PIECEWISE
    if not told and case.settings.release is None:
        return None
    gain = _gain(case, _full)
    if gain is None:
        return None
    why = f"graph mode {case.settings.graph_mode}" if told else f"{case.title} {case.settings.release}, by its sources"
    return Finding(
        id="piecewise",
        title="Rounds run in piecewise CUDA graphs",
        evidence=(f"{why}: attention of every layer is launched by the host",),
        gain=gain,
        fix=case.fix("piecewise"),
    )


def _full(time: EngineTime) -> EngineTime:
    full = replace(time, verify_graph=Graph.FULL, plain_graph=Graph.FULL)
    return _full_drafting(full) if time.draft_graph is Graph.PIECEWISE else full


def _full_drafting(time: EngineTime) -> EngineTime:
    return replace(time, draft_graph=Graph.FULL, first_draft_graph=Graph.FULL, draft_launches=0.0)


def _draft_graphs(case: Case) -> Finding | None:
    expected = case.expected
    if not case.seen.drafts or (expected is not None and expected.scenario.drafter.runs is None):
        return None
    told = case.settings.draft_graphs is False
    if expected is None or expected.graphs[1] is Graph.FULL or (not told and case.settings.release is None):
        return None
    if expected.choice.kind == "model" and case.of.engine == "vllm":
        return None  # no release runs draft models in graphs: their price has that
    gain = _launched_drafts(case, expected) if told else _gain(case, _full_drafting)
    if gain is None:
        return None
    why = "as the server says" if told else f"{case.title} {case.settings.release}, by its sources"
    return Finding(
        id="draft-graphs",
        title="The drafter runs without full CUDA graphs",
        evidence=(f"{expected.graphs[1]} for draft passes ({why}): {expected.depth} passes per round",),
        gain=gain,
        fix=case.fix("draft-graphs-told" if told else "draft-graphs"),
    )


def _launched_drafts(case: Case, expected: Expected) -> float | None:
    """Launches of draft passes that nothing hides, as on the first model runner, up to the time that was seen."""
    graphs = expected.with_engine(_full_drafting(expected.scenario.engine_time))
    launched = expected.pricer.draft_launch_seconds(expected.depth)
    took, due = case.seen.round_seconds, graphs.round_seconds
    gain = launched / graphs.decode_seconds
    gain = gain if took is None or not expected.batch_shown else min(gain, took / due.low - 1.0)
    return gain if gain >= LEAST_GAIN else None


# --- host, GPU, experts ---


def host(case: Case) -> Finding | None:
    found = _synchronous(case)
    if found is not None or not case.is_slow:
        return found
    return _constant(case) or _waiting(case)


def _synchronous(case: Case) -> Finding | None:
    expected = case.expected
    if case.settings.overlaps is not False or expected is None:
        return None
    from specmargin.catalog.engine_times import find_engine_time

    prices = expected.scenario.prices.name
    usual = find_engine_time(None, engine=case.of.engine, prices=prices)
    gain = _gain(case, lambda time: _with_graphs_of(time)(usual))
    if gain is None:
        return None
    return Finding(
        id="host",
        title="The GPU waits for the host: scheduling is synchronous",
        evidence=("the server was started without overlap of host and GPU",),
        gain=gain,
        fix=case.fix("host-sync"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """How seen times of rounds exceed expected ones over batches."""

    seconds: float  # per step, if it is a constant
    factor: float  # if it is one
    constant_fits: bool
    factor_fits: bool
    small: float  # batches
    large: float


def excess(case: Case) -> Excess | None:
    """None where the load hardly varied."""
    expected = case.expected
    timed = [pair for pair in (_timed(moment, case.seen.committed) for moment in case.of.moments) if pair is not None]
    if expected is None or len(timed) < _LEAST_MOMENTS:
        return None
    batches, took = np.array(timed).T
    if batches.max() < _MORE_LOAD * batches.min():
        return None
    grid = expected.pricer.grid(batches, expected.deepest)
    due = grid.round_seconds[:, expected.depth] / (1.0 - expected.prompt_share[0])
    if due.max() < _MORE_TIME * due.min():
        return None
    seconds, factor = float(np.median(took - due)), float(np.exp(np.median(np.log(took / due))))
    if seconds <= 0.0 or factor <= 1.0:
        return None
    as_constant, as_factor = (float(np.sum(np.log(took / model) ** 2)) for model in (due + seconds, due * factor))
    implausible = factor > _MOST_FACTOR and expected.knows_scale
    return Excess(
        seconds=seconds,
        factor=factor,
        constant_fits=as_constant < (_SOME_FIT if implausible else _BETTER_FIT) * as_factor,
        factor_fits=as_factor < _BETTER_FIT * as_constant,
        small=float(batches.min()),
        large=float(batches.max()),
    )


def _timed(moment: Moment, committed: float) -> tuple[float, float] | None:
    """Batch and seconds of a round: as counted, else by the requests that ran and their tokens."""
    if moment.sequences_per_step and moment.seconds_per_round:
        return max(moment.sequences_per_step, 1.0), moment.seconds_per_round
    if not moment.running or not moment.generated_tokens_per_second or moment.running < 1.0:
        return None
    length = moment.accept_length or committed
    return moment.running, moment.running * length / moment.generated_tokens_per_second


def _constant(case: Case) -> Finding | None:
    found = excess(case)
    if found is None or not found.constant_fits:
        return None
    return Finding(
        id="host",
        title="Steps wait for the host",
        evidence=(
            f"steps take {duration(found.seconds)} more than expected from {found.small:.0f} to {found.large:.0f} "
            f"sequences alike; as a factor ({found.factor:.1f}) on the GPU's work it would grow with them",
        ),
        gain=_excess_gain(case),
        fix=case.fix("host"),
    )


def _waiting(case: Case) -> Finding | None:
    machine = case.machine
    if machine is None or machine.utilization is None or machine.utilization > _WAITING_GPU or machine.slowed:
        return None
    return Finding(
        id="host",
        title="The GPU waits for the host",
        evidence=(slow_rounds(case), f"a kernel ran in {machine.utilization:.0%} of the time (nvidia-smi)"),
        gain=_excess_gain(case),
        fix=case.fix("host"),
    )


def slow_gpu(case: Case) -> Finding | None:
    machine = case.machine
    if machine is None or not case.is_slow:
        return None
    share, shown = machine.clock_share, []
    if machine.slowed:
        shown.append("the GPU slows down for power or temperature (nvidia-smi)")
    if machine.mig:
        shown.append("MIG is enabled: the server has a part of the GPU")
    if share is not None and share < _SLOW_CLOCK and (machine.utilization or 0.0) > _WAITING_GPU:
        shown.append(f"its clock is at {machine.clock_mhz:.0f} of {machine.largest_clock_mhz:.0f} MHz under load")
    if not shown:
        return None
    return Finding(
        id="slow-gpu",
        title="The GPU is slower than a whole one at full clock",
        evidence=(slow_rounds(case), *shown),
        gain=_excess_gain(case),
        fix=case.fix("slow-gpu"),
    )


def experts(case: Case) -> Finding | None:
    """Only the plug-in counts them."""
    expected, counted = case.expected, case.of.distinct_experts
    if expected is None or counted is None or not case.is_slow or not expected.scenario.architecture.is_moe:
        return None
    step = Step.uniform(batch=expected.batch, depth=expected.depth, context=expected.scenario.context)
    profiled = expected.pricer.distinct_experts(step)
    if profiled is None or counted < _WIDER * float(profiled):
        return None
    price = expected.pricer.verify(step)
    share = sum(float(price.share(component)) for component in ROUTED)
    return Finding(
        id="experts",
        title="Routing is wider than the profile",
        evidence=(
            slow_rounds(case),
            f"{counted:.0f} distinct experts per layer and step; {float(profiled):.0f} in the profile",
        ),
        gain=min(share * (counted / float(profiled) - 1.0), (case.slow or 1.0) - 1.0),
        fix=case.fix("experts"),
    )


def _excess_gain(case: Case) -> float | None:
    """If rounds took as long as expected."""
    took, expected = case.seen.round_seconds, case.expected
    return None if took is None or expected is None else took / expected.round_seconds.value - 1.0


def slow_rounds(case: Case) -> str:
    took, expected = duration(case.seen.round_seconds or 0.0), case.expected
    if expected is None:
        return f"a round takes {took}"
    due = expected.round_seconds
    return f"a round takes {took}; {duration(due.value)} expected ({duration(due.low)} to {duration(due.high)})"
