"""Makes the policy file of a live engine: prices, acceptance, a schedule, and what a gate would give."""

from __future__ import annotations

import numpy as np

from specmargin.acceptance.schema import CalibratorFile
from specmargin.live.policy_schema import GateFile, PolicyFile, TableFile, rounded, schedule_of
from specmargin.live.settings_schema import Range
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.study.lookahead import look_ahead
from specmargin.step import FloatArray, IntArray

_ACCEPTANCE_FACTORS = (0.5, 0.7, 0.85, 1.0, 1.1)
_MOST_GRAPH_DEPTHS = 6


def make_policy(
    *,
    table: PriceTable,
    survival: FloatArray,
    schedule: list[Range],
    model: str,
    drafter: str,
    device: str,
    context: float,
    sources: dict[str, str],
    calibrator: CalibratorFile | None = None,
    sample: FloatArray | None = None,
    plan_graphs: bool = False,
    ranks: int = 1,
) -> PolicyFile:
    """`sample`: calibrated survivals of captured rounds, which the gate needs. `plan_graphs`: the engine captures CUDA
    graphs by batch and depth, as this file says. `ranks`: data-parallel ones."""
    candidates = table.sensible_depths
    best = _best_depths(table, survival, candidates)
    if plan_graphs:
        planned = schedule_of(schedule)
        scheduled = [planned.draft(batch).depth for batch in range(table.max_batch + 1)]
        table = table._replace(graph_depth_by_batch=np.maximum(best.max(axis=0), scheduled))
    return PolicyFile(
        model=model,
        drafter=drafter,
        device=device,
        context=context,
        sources=sources,
        table=TableFile.of(table),
        survival=np.clip(survival, 0.0, 1.0).tolist(),
        schedule=schedule,
        candidates=None if len(candidates) > table.max_depth else list(candidates),
        ranks=ranks,
        graph_depths=sorted({0, *_graph_depths(best), *(depth for _, _, depth in schedule)}),
        calibrator=calibrator,
        gate=None if sample is None else _gate_file(table, survival, sample),
    )


def _best_depths(table: PriceTable, survival: FloatArray, sensible: tuple[int, ...]) -> IntArray:
    """(acceptance, batch): the best depth if acceptance is half of what is planned, or a little more than that."""
    conditional = survival / np.concatenate([[1.0], np.maximum(survival[:-1], 1e-9)])
    best = np.zeros((len(_ACCEPTANCE_FACTORS), table.max_batch + 1), dtype=np.int64)
    for i, factor in enumerate(_ACCEPTANCE_FACTORS):
        other = np.cumprod(np.clip(factor * conditional[: table.max_depth], 0.0, 0.98))
        for batch in range(1, table.max_batch + 1):
            goodput = _rates(table, other, batch)
            usable = [d for d in sensible if d <= table.graph_depth_by_batch[batch]]
            best[i, batch] = max(usable, key=lambda depth: goodput[depth], default=0)
    return best


def _graph_depths(best: IntArray) -> list[int]:
    """The depths that are best most often, over all batches; each graph takes memory, so there are few."""
    weights = 1.0 / np.arange(1.0, best.shape[1])  # loads differ by factors
    wins = np.bincount(best[:, 1:].ravel(), weights=np.tile(weights, best.shape[0]))
    most = np.argsort(-wins, kind="stable")[:_MOST_GRAPH_DEPTHS]
    return [int(depth) for depth in most if wins[depth] > 0]


def _gate_file(table: PriceTable, survival: FloatArray, sample: FloatArray) -> GateFile:
    """A gate is never worse than whole drafts, which it may verify too, and a single sequence is not gated."""
    ahead = look_ahead(table, sample, early_stop=False)
    gains = np.zeros(table.max_batch + 1)
    for batch in range(2, table.max_batch + 1):
        gains[batch] = max(ahead.rate(batch) / (batch * _rates(table, survival, batch).max()) - 1.0, 0.0)
    return GateFile(graph_depths=sorted(set(ahead.depth_by_batch[1:].tolist())), gain_by_batch=rounded(gains))


def _rates(table: PriceTable, survival: FloatArray, batch: int) -> FloatArray:
    """By depth: tokens per second and sequence, of drafts verified whole."""
    committed = 1.0 + np.concatenate([[0.0], np.cumsum(survival[: table.max_depth])])
    committed = np.pad(committed, (0, table.max_depth + 1 - committed.size), "edge")
    return np.asarray(committed / table.round_seconds(batch))
