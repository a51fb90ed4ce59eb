"""One temperature per position of a block, as SGLang's DSpark takes them: σ(logit / T) instead of the confidence.

They are fitted from the first position on, each to the survival that it gives together with those before it, by log
loss: a proper score, unlike the calibration error by which SGLang's own tool picks among 41 values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.acceptance.bank import Rounds
from specmargin.acceptance.calibration import sigmoid
from specmargin.errors import AcceptanceError
from specmargin.step import BoolArray, FloatArray

_RANGE = (0.1, 10.0)
_STEPS = 41  # of each search: over the whole range, then around the best
_BINS = 15  # of the calibration error, equally wide, as SGLang's tool has them
_EDGE = 1e-6  # confidences are clipped to _EDGE..1 - _EDGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperatures:
    by_position: FloatArray
    error_before: FloatArray  # calibration error of survival by position, at temperature 1
    error_after: FloatArray
    rounds: int
    source: str


def fit_temperatures(rounds: Rounds) -> Temperatures:
    """From the rounds in which every drafted token has a confidence."""
    confident = rounds.with_confidence()
    if confident is None:
        raise AcceptanceError(f"{rounds.source}: has no confidences, which --sts needs")
    depth = int(confident.drafted_by_round.max())
    confidence = np.clip(confident.confidence_by_round_depth[:, :depth], _EDGE, 1.0 - _EDGE)
    logits = np.log(confidence / (1.0 - confidence))
    fitted, plain = np.ones(confident.count), np.ones(confident.count)
    temperatures, before, after = [], [], []
    for position in range(depth):
        drafted = confident.drafted_by_round > position
        survived = confident.accepted_by_round[drafted] > position
        at_position = np.nan_to_num(logits[:, position])
        temperature = _best_temperature(at_position[drafted], fitted[drafted], survived)
        plain, fitted = plain * sigmoid(at_position), fitted * sigmoid(at_position / temperature)
        temperatures.append(temperature)
        before.append(calibration_error(plain[drafted], survived))
        after.append(calibration_error(fitted[drafted], survived))
    return Temperatures(
        by_position=np.array(temperatures),
        error_before=np.array(before),
        error_after=np.array(after),
        rounds=confident.count,
        source=confident.source,
    )


def _best_temperature(logits: FloatArray, before: FloatArray, survived: BoolArray) -> float:
    low, high = np.log(_RANGE)
    best = 0.0
    for _ in range(2):
        candidates = np.linspace(low, high, _STEPS)
        losses = [_log_loss(before * sigmoid(logits / np.exp(value)), survived) for value in candidates]
        best, step = float(candidates[int(np.argmin(losses))]), (high - low) / (_STEPS - 1)
        low, high = max(best - step, np.log(_RANGE[0])), min(best + step, np.log(_RANGE[1]))
    return float(np.exp(best))


def _log_loss(probability: FloatArray, survived: BoolArray) -> float:
    clipped = np.clip(probability, _EDGE, 1.0 - _EDGE)
    return float(-np.where(survived, np.log(clipped), np.log1p(-clipped)).mean())


def calibration_error(probability: FloatArray, survived: BoolArray) -> float:
    """Mean distance of predicted and observed survival over bins, by their number of rounds."""
    index = np.minimum((probability * _BINS).astype(np.int64), _BINS - 1)
    gap = np.bincount(index, probability - survived, minlength=_BINS)
    return float(np.abs(gap).sum() / probability.size)
