"""Seconds of a step, interpolated in the price tables. Compiled."""

from __future__ import annotations

from specmargin.compiler import compiled
from specmargin.policies.kernel.prices import at_context, drafting_seconds, locate, ragged_parts
from specmargin.simulator.state import Simulation
from specmargin.simulator.tables import StepTables


@compiled
def prefill_seconds(tables: StepTables, positions: float, tokens: float, attended: float) -> float:
    """Seconds that `tokens` prompt tokens add to a step with `positions` decoding positions."""
    p, over_p = locate(tables.prefill_positions, float(positions))
    t, over_t = locate(tables.prefill_tokens, float(tokens))
    a, over_a = locate(tables.prefill_attended, max(attended, 1.0))
    # Prefill alone (0 positions) has its own price. Positions are whole: nothing is interpolated between 0 and 1.
    seconds = 0.0
    for i in range(2):
        for j in range(2):
            for k in range(2):
                weight = (over_p if i else 1.0 - over_p) * (over_t if j else 1.0 - over_t)
                weight *= over_a if k else 1.0 - over_a
                if weight != 0.0:
                    seconds += weight * tables.prefill[p + i, t + j, a + k]
    return max(seconds, 0.0)


@compiled
def target_seconds(simulation: Simulation) -> None:
    """Seconds of the target for the scheduled step, added to the totals by kind of time."""
    tables, cells, totals = simulation.tables, simulation.log.cells, simulation.state.totals[0]
    step = simulation.state.step[0]
    positions = step.rounds + step.extra
    padded, full = _graph(simulation, positions)
    seconds = 0.0
    if step.rounds > 0:
        mean = step.extra / step.rounds
        context_cell = locate(tables.prices.contexts, step.context / step.rounds)
        effective = step.effective + padded - positions
        rest, experts = ragged_parts(tables.prices, step.rounds, mean, effective, context_cell)
        seconds = rest + experts
        cells[step.rounds, min(int(mean + 0.5), cells.shape[1] - 1), context_cell[0]] += seconds
        totals.decode += seconds
    if step.prompt_tokens > 0:
        prefill = prefill_seconds(tables, positions, step.prompt_tokens, step.attended / step.prompt_tokens)
        if simulation.limits.speculating:
            prefill += tables.draft_prompt_token_seconds * step.prompt_tokens
        every = positions + step.prompt_tokens
        if every > tables.graph_limit and every % 4 > 0:
            prefill += tables.unaligned_position_seconds * every
        totals.prefill += prefill
        seconds += prefill
    mixed = step.rounds > 0 and step.prompt_tokens > 0
    positions += step.prompt_tokens
    floor, launches = launch_seconds(
        simulation, positions, step.extra > 0, step.prompt_tokens > 0, mixed, full, seconds
    )
    step.launch_seconds = floor
    step.waiting_seconds = launches if launches == floor - seconds else 0.0
    off = 0.0
    if simulation.limits.speculating and step.extra == 0 and step.rounds > 0:
        off = tables.off_step_seconds + tables.off_sequence_seconds * step.rounds
    totals.launches += launches
    totals.off += off
    step.target_seconds = seconds + launches + off


@compiled
def _graph(simulation: Simulation, positions: int) -> tuple[int, bool]:
    """Positions of the graph that a step of equal rounds runs in, and whether it is a full one."""
    step, graphs = simulation.state.step[0], simulation.graphs
    if step.rounds == 0 or step.prompt_tokens > 0 or step.extra % step.rounds > 0:
        return positions, True
    depth = step.extra // step.rounds
    return graphs.positions[step.rounds, depth], graphs.full[step.rounds, depth]


@compiled
def slowdown_at(tables: StepTables, moment: float) -> float:
    """What a launch takes then, over its mean."""
    size = tables.launch_slowdown.size
    return float(tables.launch_slowdown[0 if size == 1 else int(moment / tables.slowdown_seconds) % size])


@compiled
def launch_seconds(
    simulation: Simulation, positions: int, verifies: bool, prompts: bool, mixed: bool, full: bool, seconds: float
) -> tuple[float, float]:
    """Of a step with `seconds` of kernels: what the host takes to launch it, and how much longer the step takes so."""
    tables = simulation.tables
    slowdown = slowdown_at(tables, simulation.state.totals[0].clock)
    if positions > tables.graph_limit:
        floor = tables.eager_mixed_floor_seconds if mixed else tables.eager_floor_seconds
        if prompts and simulation.limits.speculating:
            floor += tables.draft_prompt_floor_seconds
        floor *= slowdown
        return floor, max(floor - seconds, tables.eager_seconds)
    floor = tables.verify_floor_seconds if verifies else tables.floor_seconds
    if not full:
        floor = max(floor, tables.piecewise_floor_seconds)
    if prompts:
        floor = tables.mixed_floor_seconds if mixed else tables.prompt_floor_seconds
    floor *= slowdown
    return floor, max(floor - seconds, 0.0)


@compiled
def draft_alike(simulation: Simulation) -> None:
    """Price drafts of the chosen depth for every sequence."""
    state, prices = simulation.state, simulation.tables.prices
    step, depth = state.step[0], state.engine[0].chosen_depth
    step.draft_seconds = 0.0
    step.drafted = depth * step.ready
    state.totals[0].drafted += step.drafted
    if step.drafted > 0:
        context_cell = locate(prices.contexts, step.draft_context / step.ready)
        step.draft_seconds = at_context(prices.draft_seconds, step.ready, depth, context_cell)


@compiled
def draft_ragged(simulation: Simulation) -> None:
    """Price drafts of the depths in `state.lengths`, one per sequence."""
    state, prices = simulation.state, simulation.tables.prices
    requests, slots, lengths, step = state.requests, state.slots, state.lengths, state.step[0]
    count = drafted = 0
    for i in range(state.engine[0].running):
        if slots[i].drafts:
            request = requests[slots[i].request]
            request.held = request.verify = lengths[count]
            drafted += lengths[count]
            count += 1
    step.drafted = drafted
    state.totals[0].drafted += drafted
    context_cell = locate(prices.contexts, step.draft_context / max(step.ready, 1))
    step.draft_seconds = drafting_seconds(prices, lengths, count, context_cell)
