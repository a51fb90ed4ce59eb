"""Price tables of policies, filled in advance so that the hot path only looks up."""

from __future__ import annotations

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.policies.kernel.prices import PriceTable
from specmargin.prices.drafters import HeadDrafter
from specmargin.prices.work import Component
from specmargin.step import FloatArray, Step


def to_depth(survival: FloatArray, depth: int) -> FloatArray:
    """(rounds, depth): truncated, or padded with tokens that never survive, to the depth of the kernel."""
    if survival.shape[1] == depth:
        return survival
    filled = np.zeros((survival.shape[0], depth))
    width = min(depth, survival.shape[1])
    filled[:, :width] = survival[:, :width]
    return filled


def drafting_by_depth(pass_by_batch: FloatArray, max_depth: int, *, by_pass: bool) -> FloatArray:
    """(batch, depth) seconds of drafting, from the seconds of one pass (or of the block) for 0, 1, … sequences."""
    passes = np.arange(max_depth + 1.0)
    return np.asarray(pass_by_batch[:, np.newaxis] * (passes if by_pass else np.minimum(passes, 1.0)))


def drafting_line(
    *, fixed_seconds: float, sequence_seconds: float, max_batch: int, max_depth: int, by_pass: bool
) -> FloatArray:
    """The same where a pass takes a fixed time and a time per sequence."""
    batch = np.arange(max_batch + 1.0)
    one_pass = np.where(batch > 0, fixed_seconds + sequence_seconds * batch, 0.0)
    return drafting_by_depth(one_pass, max_depth, by_pass=by_pass)


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


def scenario_table(pricer: Pricer, *, max_batch: int, max_depth: int) -> PriceTable:
    """A scenario's own prices, with all sequences at its context. Depth 0 is speculation configured but off."""
    scenario = pricer.scenario
    batch = np.unique(np.concatenate([np.arange(1, 17), np.geomspace(16, max_batch, 40).round(), [max_batch]]))
    depth = np.arange(max_depth + 1.0)
    step = Step.uniform(batch=batch[:, np.newaxis], depth=depth, context=scenario.context)
    total = np.array(pricer.verify(step).total_seconds)
    total[:, 0] += pricer.off_seconds(batch, scenario.context, total[:, 0])
    effective = effective_positions(scenario, depth)
    # One entry per position: experts take a fixed time, and a coarser table is 10% off for a lone sequence.
    positions = np.arange(np.ceil(max_batch * float(effective[-1])) + 2.0)
    experts = expert_seconds(pricer, positions)
    # The rest is everything but the experts of independent positions, so that equal depths are priced exactly.
    rest = total - np.interp(batch[:, np.newaxis] * effective, positions, experts)
    all_batches = np.arange(max_batch + 1.0)
    by_pass = not (isinstance(scenario.drafter, HeadDrafter) and scenario.drafter.head.block is not None)
    one_pass = _pass_seconds(pricer, batch, max_batch, max_depth, by_pass=by_pass)
    return PriceTable.of(
        rest_seconds=np.stack([np.interp(all_batches, batch, column) for column in rest.T], axis=1),
        draft_seconds=drafting_by_depth(one_pass, max_depth, by_pass=by_pass),
        expert_seconds=experts,
        effective_by_depth=effective,
        by_pass=by_pass,
    )


def effective_positions(scenario: Scenario, depth: FloatArray) -> FloatArray:
    """m(depth + 1): how many independent positions a run of this depth counts as."""
    pools = scenario.architecture.pools
    local = scenario.routing.local(pools[0]) if pools else None
    return depth + 1.0 if local is None else np.concatenate([[1.0], local.effective_positions(depth[1:] + 1.0)])


def expert_seconds(pricer: Pricer, positions: FloatArray) -> FloatArray:
    """Seconds of the routed experts, by number of independent positions."""
    step = Step.uniform(batch=np.maximum(positions, 1.0), depth=0, context=pricer.scenario.context)
    for line in pricer.verify(step).components:
        if line.component is Component.ROUTED_EXPERTS:
            return np.asarray(line.seconds * np.minimum(positions, 1.0))
    return np.zeros_like(positions)


def _pass_seconds(pricer: Pricer, batch: FloatArray, max_batch: int, max_depth: int, *, by_pass: bool) -> FloatArray:
    """One pass (or the block) at every batch size. Not a line: a small batch touches all experts of a draft head."""
    shape = np.ones_like(batch)
    whole = pricer.draft_seconds(batch, max_depth * shape, pricer.scenario.context * shape)
    seconds: FloatArray = np.interp(np.arange(max_batch + 1.0), batch, whole / max_depth if by_pass else whole)
    seconds[0] = 0.0
    return seconds
