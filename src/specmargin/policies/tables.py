"""Price tables of policies, filled in advance so that the hot path only looks up."""

from __future__ import annotations

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.policies.kernel.prices import PriceTable
from specmargin.prices.work import ROUTED
from specmargin.step import FloatArray, Step

_MOST_POSITIONS = 16_384  # in the table of several ranks
_PROFILED_CONTEXT = 8192.0  # vLLM's VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN


def to_depth(survival: FloatArray, depth: int) -> FloatArray:
    """(rounds, depth): truncated, or padded with tokens that never survive, to the depth of the kernel."""
    if survival.shape[1] == depth:
        return survival
    filled = np.zeros((survival.shape[0], depth))
    width = min(depth, survival.shape[1])
    filled[:, :width] = survival[:, :width]
    return filled


def drafting_line(
    *, fixed_seconds: float, sequence_seconds: float, max_batch: int, max_depth: int, by_pass: bool
) -> FloatArray:
    """(batch, depth) seconds of drafting, where a pass (or the block) takes a fixed time and a time per sequence."""
    batch, passes = np.arange(max_batch + 1.0)[:, np.newaxis], np.arange(max_depth + 1.0)
    one_pass = np.where(batch > 0, fixed_seconds + sequence_seconds * batch, 0.0)
    return np.asarray(one_pass * (passes if by_pass else np.minimum(passes, 1.0)))


def study_table(*, by_pass: bool, max_batch: int = 512, max_depth: int = 8) -> PriceTable:
    """The prices at which policies are compared: 48 layers, 128 experts, 8 per token, a slow host."""
    batch, depth = np.arange(max_batch + 1.0)[:, np.newaxis], np.arange(max_depth + 1.0)
    rest = 2.4e-3 + 0.05e-3 * batch + 48 * 20e-6 + 2.0e-3 + 0.01e-3 * batch * (depth + 1.0)
    effective = (depth + 1.0) ** 0.8
    positions = np.linspace(0.0, max_batch * effective[-1], 4096)
    distinct = 128.0 * (1.0 - (1.0 - 8.0 / 128.0) ** positions)
    fixed, per_sequence = (0.35e-3, 0.002e-3) if by_pass else (0.6e-3, 0.004e-3)
    return PriceTable.of(
        rest_seconds=rest,
        draft_seconds=drafting_line(
            fixed_seconds=fixed,
            sequence_seconds=per_sequence,
            max_batch=max_batch,
            max_depth=max_depth,
            by_pass=by_pass,
        ),
        expert_seconds=48 * 2.2e-6 * distinct,
        expert_step=float(positions[1]),
        effective_by_depth=effective,
        by_pass=by_pass,
    )


def scenario_table(pricer: Pricer, setting: Setting, *, max_batch: int, ranks: int = 1) -> PriceTable:
    """The plan's own grid: every batch up to `max_batch`, at the scenario's context, and what the setting allows.

    Nothing is interpolated over batch, since prices jump at the graph limit. Depth 0 is speculation configured but off.
    `ranks`: batches and positions are those of each of so many data-parallel ranks.
    """
    scenario = pricer.scenario
    grid = pricer.grid(ranks * np.arange(1.0, max_batch + 1.0), setting.max_depth)
    effective = effective_positions(scenario, grid.depths)
    # One entry per position: experts take a fixed time, and a coarser table is 10% off for a lone sequence. Many ranks
    # have more positions than a file should hold.
    last = np.ceil(ranks * max_batch * float(effective[-1])) + 2.0
    step = 1.0 if ranks == 1 else float(np.ceil(last / _MOST_POSITIONS))
    positions = np.arange(0.0, last + step - 1.0, step)
    experts = expert_seconds(pricer, positions)
    # The rest is everything but the experts of independent positions, so that equal depths are priced exactly.
    rest = grid.verify_seconds - np.interp(grid.batches[:, np.newaxis] * effective, positions, experts)
    deepest = setting.allowed(grid).sum(axis=1) - 1
    return PriceTable.of(
        rest_seconds=_with_no_sequences(rest),
        # What drafting adds to the round: less than it takes where it overlaps with verification.
        draft_seconds=_with_no_sequences(grid.round_seconds - grid.verify_seconds),
        expert_seconds=experts,
        expert_step=step / ranks,
        effective_by_depth=effective,
        by_pass=not scenario.drafter.drafts_blocks,
        graph_depth_by_batch=np.concatenate([[setting.max_depth], deepest]),
    )


def profiled_seconds(pricer: Pricer, *, max_batch: int, max_depth: int) -> FloatArray:
    """Seconds of a verify step by positions from 0, as vLLM profiles them for its adaptive verification: up to
    `max_batch` requests of 8,192 tokens share the positions, all padding, which no expert is read for."""
    positions = np.arange(1.0, max_batch * (max_depth + 1) + 1.0)
    requests = np.minimum(positions, max_batch)
    price = pricer.verify(Step.uniform(batch=requests, depth=positions / requests - 1.0, context=_PROFILED_CONTEXT))
    experts = [line.seconds for line in price.components if line.component in ROUTED]
    seconds = np.asarray(price.total_seconds - np.sum(experts, axis=0) if experts else price.total_seconds)
    return np.concatenate([[0.0], np.maximum.accumulate(seconds)])


def _with_no_sequences(seconds: FloatArray) -> FloatArray:
    """With a row in front, for a batch of 0."""
    return np.concatenate([np.zeros((1, seconds.shape[1])), seconds])


def effective_positions(scenario: Scenario, depth: FloatArray) -> FloatArray:
    """m(depth + 1): how many independent positions a run of this depth counts as."""
    pools = scenario.architecture.pools
    local = scenario.routing.local(pools[0]) if pools else None
    return depth + 1.0 if local is None else np.concatenate([[1.0], local.effective_positions(depth[1:] + 1.0)])


def expert_seconds(pricer: Pricer, positions: FloatArray) -> FloatArray:
    """Seconds of the routed experts, by number of independent positions."""
    step = Step.uniform(batch=np.maximum(positions, 1.0), depth=0, context=pricer.scenario.context)
    lines = [line.seconds for line in pricer.verify(step).components if line.component in ROUTED]
    return np.asarray(np.sum(lines, axis=0) * np.minimum(positions, 1.0)) if lines else np.zeros_like(positions)
