"""Prices of the engine that is about to swing, and a policy made of them: the short way, for a benchmark.

`specmargin measure vllm` is the long one. Here step times at a few batches and depths are fitted with what a price
table knows: a time a step, a sequence, a position, an expert, and a draft pass.
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
    batch, depth, seconds = (
        np.array([getattr(one, name) for one in timed], float) for name in ("batch", "depth", "seconds")
    )
    features = np.stack(
        [
            np.ones_like(batch),
            batch,
            batch * (depth + 1.0),
            _distinct(batch * (depth + 1.0) ** _RUN_EXPONENT),
            depth,
            depth * batch,
        ],
        axis=1,
    )
    weights, _ = nnls(features / seconds[:, np.newaxis], np.ones_like(seconds))  # relative errors
    step, sequence, position, expert, draft, draft_sequence = weights
    every, deep = np.arange(max_batch + 1.0)[:, np.newaxis], np.arange(max_depth + 1.0)
    effective = (deep + 1.0) ** _RUN_EXPONENT
    strangers = np.linspace(0.0, max_batch * effective[-1], 512)
    return PriceTable(
        rest_by_batch_depth=step + sequence * every + position * every * (deep + 1.0),
        expert_seconds=expert * _distinct(strangers),
        expert_step=float(strangers[1]),
        effective_by_depth=effective,
        draft=DraftCost(fixed_seconds=float(draft), sequence_seconds=float(draft_sequence), by_pass=True),
    )


def _distinct(strangers: FloatArray) -> FloatArray:
    return np.asarray(_EXPERTS * (1.0 - (1.0 - _EXPERTS_PER_TOKEN / _EXPERTS) ** strangers))
