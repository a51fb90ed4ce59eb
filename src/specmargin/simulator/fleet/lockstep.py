"""One step of all ranks, compiled. Every rank schedules its own batch; the slowest rank sets the time of the step.

Batches are padded to that of the rank with most positions, as `prices/ranks.py` does: padding has no context and reads
no experts. Experts are read for the positions of all ranks. Prompts are not padded, as engines run them without CUDA
graphs. Ranks without requests run along.
"""

from __future__ import annotations

from typing import NamedTuple

from specmargin.compiler import compiled, compiled_entry
from specmargin.policies.kernel.learn import (
    acceptance_shift,
    conditional_acceptance,
    learn_acceptance,
    rounds_of_all,
)
from specmargin.policies.kernel.prices import AxisPoint, at_context, expert_seconds, locate, ragged_parts
from specmargin.simulator.core import FINISHED, LOG_FULL, RUNNING
from specmargin.simulator.costs import launch_seconds, prefill_seconds
from specmargin.simulator.fleet.arrivals import arrive
from specmargin.simulator.fleet.state import Fleet, learned_of, rank_of
from specmargin.simulator.scheduler import close, commit, log_is_full, schedule
from specmargin.step import FloatArray, IntArray


class Together(NamedTuple):
    """The steps of all ranks, as far as one rank's price depends on them."""

    widest: int  # rank with most decoding positions: the others are padded to them
    experts: float  # seconds of routed experts, for the decoding positions of all ranks
    prompt_experts: float  # and what prompts of all ranks add to them
    prompts: bool  # a rank has some
    most: int  # positions of one rank, prompts included
    mixed: bool  # a rank decodes beside prompts


@compiled_entry
def run(fleet: Fleet, max_steps: int) -> int:
    """Run up to `max_steps` steps at the depths of `depth_by_rank`."""
    first = rank_of(fleet, 0)
    for _ in range(max_steps):
        if not arrive(fleet):
            return FINISHED
        if log_is_full(first.limits, first.log, first.state):
            return LOG_FULL
        for rank in range(fleet.depth_by_rank.size):
            schedule(rank_of(fleet, rank))
        target = _target_seconds(fleet)
        for rank in range(fleet.depth_by_rank.size):
            _commit(fleet, rank)
        draft = _draft_seconds(fleet)
        for rank in range(fleet.depth_by_rank.size):
            step = fleet.ranks.step[rank]
            step.target_seconds, step.draft_seconds = target, draft
            close(rank_of(fleet, rank))
        _align(fleet)
        fleet.all[0].steps += 1
    return RUNNING


@compiled
def _commit(fleet: Fleet, rank: int) -> None:
    """Commit the tokens of one rank, which learns from its outcomes."""
    simulation = rank_of(fleet, rank)
    state = simulation.state
    state.engine[0].chosen_depth = fleet.depth_by_rank[rank]
    commit(simulation)
    rounds = state.step[0].rounds
    if fleet.learns and rounds > 0:
        nothing = fleet.common.kernel.scratch.nothing
        learn_acceptance(learned_of(fleet, rank), state.verified[:rounds], state.accepted[:rounds], nothing)


@compiled
def _align(fleet: Fleet) -> None:
    """Ranks whose hosts were faster wait for the last one."""
    totals, last = fleet.ranks.totals, 0.0
    for rank in range(totals.size):
        last = max(last, totals[rank].clock)
    for rank in range(totals.size):
        wait = last - totals[rank].clock
        totals[rank].clock = last
        totals[rank].busy += wait
        fleet.all[0].waiting += wait


# --- prices ---


@compiled
def _target_seconds(fleet: Fleet) -> float:
    """The step of the slowest rank, added to the totals of the first rank by kind of time."""
    tables, steps, ranks = fleet.common.tables, fleet.ranks.step, fleet.depth_by_rank.size
    totals, everyone = fleet.ranks.totals[0], fleet.all[0]
    together = _together(fleet)
    widest = steps[together.widest]
    slowest, prefill, sum_padded, sum_own = 0.0, 0.0, 0.0, 0.0
    for rank in range(ranks):
        own, padded = _decode_seconds(fleet, rank, together)
        prompts = _prompt_seconds(fleet, rank)
        sum_own += own + prompts
        sum_padded += padded + prompts
        if padded + prompts > slowest:
            slowest, prefill = padded + prompts, prompts
        everyone.sequences += steps[rank].rounds / ranks
    everyone.busiest += widest.rounds
    everyone.padding += sum_padded - sum_own
    everyone.waiting += ranks * slowest - sum_padded
    prefill += together.prompt_experts
    seconds = slowest + together.experts + together.prompt_experts
    floor, launches = launch_seconds(
        fleet.common, together.most, widest.extra > 0, together.prompts, together.mixed, True, seconds
    )
    off = 0.0
    if fleet.common.limits.speculating and widest.extra == 0 and widest.rounds > 0:
        off = tables.off_step_seconds + tables.off_sequence_seconds * widest.rounds
    totals.decode += seconds - prefill
    totals.prefill += prefill
    totals.launches += launches
    totals.off += off
    _count_cell(fleet, together.widest, seconds - prefill)
    for rank in range(ranks):
        steps[rank].launch_seconds = floor
        steps[rank].waiting_seconds = launches if launches == floor - seconds else 0.0
    return seconds + launches + off


@compiled
def _together(fleet: Fleet) -> Together:
    tables, steps, ranks = fleet.common.tables, fleet.ranks.step, fleet.depth_by_rank.size
    widest = most = positions = prompt_tokens = 0
    effective, mixed = 0.0, False
    for rank in range(ranks):
        step = steps[rank]
        decoding = step.rounds + step.extra
        if decoding > steps[widest].rounds + steps[widest].extra:
            widest = rank
        most = max(most, decoding + step.prompt_tokens)
        positions += decoding
        prompt_tokens += step.prompt_tokens
        effective += step.effective
        mixed |= step.rounds > 0 and step.prompt_tokens > 0
    experts = expert_seconds(tables.prices, effective / ranks) if positions > 0 else 0.0
    prompt_experts = 0.0
    if prompt_tokens > 0:
        prompt_experts = prefill_seconds(fleet.experts, positions / ranks, prompt_tokens / ranks, 1.0)
    return Together(widest, experts, prompt_experts, prompt_tokens > 0, most, mixed)


@compiled
def _decode_seconds(fleet: Fleet, rank: int, together: Together) -> tuple[float, float]:
    """Of one rank without routed experts: by its own batch, and padded to the widest one."""
    prices, step, widest = fleet.common.tables.prices, fleet.ranks.step[rank], fleet.ranks.step[together.widest]
    own = 0.0
    if step.rounds > 0:
        context = locate(prices.contexts, step.context / step.rounds)
        own = ragged_parts(prices, step.rounds, step.extra / step.rounds, 0.0, context)[0]
    if widest.rounds == 0 or rank == together.widest:
        return own, own
    context = locate(prices.contexts, step.context / widest.rounds)
    padded = ragged_parts(prices, widest.rounds, widest.extra / widest.rounds, 0.0, context)[0]
    return own, max(own, padded)


@compiled
def _prompt_seconds(fleet: Fleet, rank: int) -> float:
    """Prompts of one rank, without routed experts."""
    tables, step = fleet.common.tables, fleet.ranks.step[rank]
    if step.prompt_tokens == 0:
        return 0.0
    positions, attended = step.rounds + step.extra, step.attended / step.prompt_tokens
    seconds = prefill_seconds(tables, float(positions), float(step.prompt_tokens), attended)
    if fleet.common.limits.speculating:
        seconds += tables.draft_prompt_token_seconds * step.prompt_tokens
    return seconds


@compiled
def _count_cell(fleet: Fleet, rank: int, seconds: float) -> None:
    """The decode time by the batch of the widest rank, later split by component."""
    prices, step, cells = fleet.common.tables.prices, fleet.ranks.step[rank], fleet.common.log.cells
    if step.rounds > 0:
        context = locate(prices.contexts, step.context / step.rounds)
        depth = min(int(step.extra / step.rounds + 0.5), cells.shape[1] - 1)
        cells[step.rounds, depth, context[0]] += seconds


@compiled
def _draft_seconds(fleet: Fleet) -> float:
    """The drafting of the slowest rank; all are padded to the one with most sequences."""
    rows, ranks = fleet.ranks, fleet.depth_by_rank.size
    most, slowest, sum_padded, sum_own = 0, 0.0, 0.0, 0.0
    for rank in range(ranks):
        most = max(most, rows.step[rank].ready)
    for rank in range(ranks):
        own, padded = _rank_draft_seconds(fleet, rank, most)
        sum_own += own
        sum_padded += padded
        slowest = max(slowest, padded)
    fleet.all[0].padding += sum_padded - sum_own
    fleet.all[0].waiting += ranks * slowest - sum_padded
    return slowest


@compiled
def _rank_draft_seconds(fleet: Fleet, rank: int, most: int) -> tuple[float, float]:
    """By its own sequences, and padded to so many."""
    prices, step, depth = fleet.common.tables.prices, fleet.ranks.step[rank], fleet.depth_by_rank[rank]
    step.drafted = depth * step.ready
    fleet.ranks.totals[rank].drafted += step.drafted
    if depth == 0 or most == 0:
        return 0.0, 0.0
    padded = at_context(prices.draft_seconds, most, depth, locate(prices.contexts, step.draft_context / most))
    if step.ready == 0:
        return 0.0, padded
    own_context: AxisPoint = locate(prices.contexts, step.draft_context / step.ready)
    own = at_context(prices.draft_seconds, step.ready, depth, own_context)
    return own, max(own, padded)


# --- votes ---


@compiled_entry
def fill_votes(fleet: Fleet, loads: IntArray, tokens: FloatArray) -> None:
    """By rank: sequences that draft, and (by depth, from 0) the tokens that they commit per step as learned."""
    prior = fleet.common.kernel.rules.prior
    for rank in range(loads.size):
        learned = learned_of(fleet, rank)
        shift, rounds = acceptance_shift(prior, learned), rounds_of_all(learned)
        loads[rank] = fleet.ranks.step[rank].ready
        alive = committed = 1.0
        tokens[rank, 0] = loads[rank]
        for depth in range(prior.size):
            alive *= conditional_acceptance(prior, learned, depth, shift, rounds)
            committed += alive
            tokens[rank, depth + 1] = loads[rank] * committed
