"""Seeds vLLM's acceptance estimator with a policy's calibration, so that the gate starts from what is known.

vLLM's estimator is `σ(slope · logit(q) + intercept by depth)` with q the drafter's largest probability; it continues to
learn from its start. A policy's calibrator has more features, so it is projected: a sequence of average history.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specmargin.acceptance.calibration import Logistic, Tokens, logit
from specmargin.step import FloatArray

_LOG_ODDS = np.linspace(-3.0, 5.0, 33)  # of the drafter's confidence, where most of its tokens are
_SLOPES = (0.02, 4.0)
_LARGEST_INTERCEPT = 5.0  # log-odds


def projection(calibrator: Logistic, depths: int) -> tuple[float, FloatArray]:
    """Slope and intercepts by depth that are nearest to the calibrator in log-odds, over usual confidences."""
    confidence = 1.0 / (1.0 + np.exp(-_LOG_ODDS))
    target = np.empty((depths, _LOG_ODDS.size))
    for depth in range(depths):
        tokens = Tokens(
            depth=np.full(_LOG_ODDS.size, min(depth, calibrator.depths - 1)),
            confidence=confidence,
            history=np.zeros(_LOG_ODDS.size),  # even odds, as before the first round
            before=_LOG_ODDS if depth else np.zeros(_LOG_ODDS.size),
            accepted=np.zeros(_LOG_ODDS.size, dtype=np.bool_),
            round=np.zeros(_LOG_ODDS.size, dtype=np.int64),
        )
        target[depth] = logit(calibrator.probability(tokens))
    centred = _LOG_ODDS - _LOG_ODDS.mean()
    slope = float((target @ centred).mean() / (centred @ centred))
    slope = min(max(slope, _SLOPES[0]), _SLOPES[1])
    return slope, np.asarray(target.mean(axis=1) - slope * _LOG_ODDS.mean())


def forget(estimator: Any) -> None:
    """Drop what was observed since the last fit: warm-up steps verify drafts of made-up requests."""
    for sums in (estimator.info, estimator.grad, estimator.counts):
        sums.zero_()
    estimator._steps_since_refit = 0


def bound(estimator: Any) -> None:
    """Keep the estimator where it can learn. Its Newton steps may diverge once predictions are 0 or 1; at an intercept
    far below 0 no token of that depth is verified again, so nothing would bring it back."""
    estimator.slope.clamp_(*_SLOPES)
    estimator.intercepts.clamp_(-_LARGEST_INTERCEPT, _LARGEST_INTERCEPT)


def seed(estimator: Any, calibrator: Logistic | None) -> bool:
    """In place, because CUDA graphs read these tensors; whether it was seeded."""
    if estimator is None or calibrator is None:
        return False
    slope, intercepts = projection(calibrator, int(estimator.num_speculative_steps))
    if not (np.isfinite(slope) and np.isfinite(intercepts).all()):
        return False
    estimator.slope.fill_(slope)
    estimator.intercepts.copy_(estimator.intercepts.new_tensor(intercepts.tolist()))
    return True
