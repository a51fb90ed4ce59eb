"""Prices of the engine that is about to swing, and a policy made of them: the short way, for a benchmark.

`specmargin measure vllm` is the long one. Here the steps of a few batches and of every depth are timed, and stand in
the price table as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from specmargin.acceptance.bank import read_bank
from specmargin.acceptance.calibration import Logistic, survival_of, tokens_of
from specmargin.acceptance.estimate import product_limit
from specmargin.decisions.policies.policy import Schedule
from specmargin.decisions.policies.tables import DraftCost, PriceTable
from specmargin.engines.live.making import make_policy
from specmargin.engines.live.policy_schema import policy_text
from specmargin.step import FloatArray

_EXPERTS, _EXPERTS_PER_TOKEN = 64, 4
_EXPERT_SHARE = 0.3  # of a plain step of the largest batch; assumed: the whole is what was measured
_RUN_EXPONENT = 0.85  # m(q) ≈ q^0.85: what the reference bank's routing profile has


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    batch: int
    depth: int
    seconds: float


def fit_policy(timed: Sequence[Timed], reference: Path | None, *, max_depth: int, max_batch: int) -> str:
    table = _table(timed, max_depth=max_depth, max_batch=max_batch)
    if reference is None:
        raise SystemExit("the reference MoE's bank is not there")
    rounds = read_bank([reference / "bank"])
    calibrator = Logistic.fit(tokens_of(rounds), depths=rounds.depth)
    sample = survival_of(rounds, calibrator)
    survival = product_limit(rounds)
    depths = Schedule.homogeneous(table, survival).depth_by_batch
    file = make_policy(
        table=table,
        survival=survival[:max_depth],
        schedule=[(b, b, int(depths[b])) for b in range(1, max_batch + 1)],
        model="reference-moe",
        drafter="draft_model",
        device="this machine",
        context=200.0,
        sources={"prices": f"{len(timed)} measurements of this run", "acceptance": "reference bank"},
        calibrator=calibrator,
        sample=sample[np.random.default_rng(0).permutation(sample.shape[0])[:512]],
    )
    return policy_text(file)


def _table(timed: Sequence[Timed], *, max_depth: int, max_batch: int) -> PriceTable:
    """Drafting and experts by a fit; the rest as measured, depth by depth: some run lengths are slow here, and no law
    would have said which."""
    batch, depth, seconds = np.array([(one.batch, one.depth, one.seconds) for one in timed], dtype=np.float64).T
    features = np.stack([np.ones_like(batch), batch, batch * (depth + 1.0), depth, depth * batch], axis=1)
    even = np.flatnonzero((depth % 2 == 1) | (depth == 0))  # runs of an even length, which are the quick ones
    weights, _ = nnls(features[even] / seconds[even, np.newaxis], np.ones(even.size))  # relative errors
    draft = DraftCost(fixed_seconds=float(weights[3]), sequence_seconds=float(weights[4]), by_pass=True)
    every, deep = np.arange(max_batch + 1.0), np.arange(max_depth + 1.0)
    effective = (deep + 1.0) ** _RUN_EXPONENT
    strangers = np.linspace(0.0, max_batch * effective[-1], 512)
    expert = _EXPERT_SHARE * float(np.median(seconds[(batch == batch.max()) & (depth == 0)])) / _EXPERTS
    rest = np.empty((max_batch + 1, max_depth + 1))
    for d in range(max_depth + 1):
        sizes = np.unique(batch[depth == d])
        median = np.array([np.median(seconds[(depth == d) & (batch == size)]) for size in sizes])
        drafting = np.array([draft.by_depth(int(size), max_depth)[d] for size in sizes])
        experts = expert * _distinct(sizes * effective[d])
        rest[:, d] = np.interp(every, sizes, np.maximum(median - drafting - experts, 0.1 * median))
    return PriceTable(
        rest_by_batch_depth=rest,
        expert_seconds=expert * _distinct(strangers),
        expert_step=float(strangers[1]),
        effective_by_depth=effective,
        draft=draft,
    )


def _distinct(strangers: FloatArray) -> FloatArray:
    return np.asarray(_EXPERTS * (1.0 - (1.0 - _EXPERTS_PER_TOKEN / _EXPERTS) ** strangers))
