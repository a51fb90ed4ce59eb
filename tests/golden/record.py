"""Makes the recorded steps and the policy files that they are replayed with: `python -m tests.golden.record`.

Run once. A new recording is a new test: replace it only to add something that the old one does not cover. An engine
is imitated with each controller in it: its prices are 12% off the policy's and noisy, acceptance falls and recovers,
confidences are overconfident meanwhile, some are missing, some steps hold prompts.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tests.golden.files import DATA, write_frame
from tests.golden.policies import DRAFTERS, MAX_BATCH, MAX_DEPTH, look_ahead_text, policy_text
from tests.golden.rounds import (
    INPUTS,
    LEVELS,
    NO_SIGNAL,
    OUTCOMES,
    PLAYERS,
    SIGNALS,
    Player,
    decide,
    survivals,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_SEED = 20_260_801
_STEPS = 600
# From each step on: mean acceptance of a token, and what confidences claim it to be.
_PHASES = {0: (0.78, 0.78), 180: (0.12, 0.70), 320: (0.86, 0.86), 460: (0.60, 0.60)}
_PROMPTS = 0.08  # part of the steps
_MISSING = 0.03  # part of the steps with a confidence that is not a number
_NOISE = 0.03  # of a step's seconds
_SLOWDOWN, _SLOW = 40.0, range(180, 260)  # of steps that draft, for the controller whose drafts stop paying


def record() -> None:
    DATA.mkdir(exist_ok=True)
    for name in DRAFTERS:
        (DATA / f"{name}.policy.json").write_text(policy_text(name), encoding="utf-8")
        (DATA / f"{name}.look_ahead.json").write_text(look_ahead_text(name), encoding="utf-8")
    levels, accepted = _signals(np.random.default_rng(_SEED))
    rows = [row for player in PLAYERS for row in _played(player, levels, accepted)]
    signals = [{"step": step, "survival": drawn.ravel().tolist()} for step, drawn in enumerate(levels)]
    for name, recorded in ((SIGNALS, signals), (OUTCOMES, rows)):
        write_frame(name, pl.DataFrame(recorded, schema=dict(INPUTS[name]), orient="row"), exact=True)


def _batches(generator: np.random.Generator) -> IntArray:
    """1 to 64 and back, three times, and never quite the same."""
    wave = 3.0 - 3.0 * np.cos(2.0 * np.pi * np.arange(_STEPS) / 200.0)
    sizes = 2.0 ** (wave + generator.normal(0.0, 0.25, _STEPS))
    return np.asarray(np.clip(np.round(sizes), 1, MAX_BATCH), dtype=np.int64)


def _signals(generator: np.random.Generator) -> tuple[list[IntArray], list[IntArray]]:
    """By step: survivals as recorded, and how many tokens of each sequence the target would accept."""
    levels, lengths = [], []
    for step, batch in enumerate(_batches(generator)):
        true, claimed = _PHASES[max(start for start in _PHASES if start <= step)]
        wiggle = generator.normal(0.0, 1.0, (batch, 1)) + generator.normal(0.0, 0.7, (batch, MAX_DEPTH))
        chance, claim = _logistic(_logit(true) + wiggle), _logistic(_logit(claimed) + wiggle)
        drawn = np.round(np.cumprod(claim, axis=1) * LEVELS).astype(np.int64)
        if generator.random() < _MISSING:
            drawn[generator.integers(batch), generator.integers(MAX_DEPTH)] = NO_SIGNAL
        levels.append(drawn)
        lengths.append(np.cumprod(generator.random((batch, MAX_DEPTH)) < chance, axis=1).sum(axis=1))
    return levels, lengths


def _logit(probability: float) -> float:
    return float(np.log(probability / (1.0 - probability)))


def _logistic(odds: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-odds)))


def _played(player: Player, levels: list[IntArray], lengths: list[IntArray]) -> list[dict[str, Any]]:
    generator = np.random.default_rng([_SEED, PLAYERS.index(player)])
    prices = json.loads((DATA / f"{player.policy}.policy.json").read_text(encoding="utf-8"))["table"]
    controller, rows = player.controller(), []
    for step, (drawn, length) in enumerate(zip(levels, lengths, strict=True)):
        decided = decide(player, controller, survivals(drawn))
        drafted = np.array(decided["draft_lengths"] or [decided["draft_depth"]] * length.size, dtype=np.int64)
        verified = np.array(decided["verify_depths"], dtype=np.int64)
        accepted = np.minimum(length, verified)
        seconds = _seconds(prices, drafted, verified) * float(np.exp(generator.normal(0.0, _NOISE)))
        if player.name == "drafts that stop paying" and step in _SLOW and drafted.any():
            seconds *= _SLOWDOWN
        if generator.random() < _PROMPTS:
            seconds = float("nan")
        outcome = {"drafted": drafted, "verified": verified, "accepted": accepted}
        controller.learn(**outcome, seconds=seconds, survival=survivals(drawn))
        lists = {name: values.tolist() for name, values in outcome.items()}
        rows.append({"controller": player.name, "step": step, **lists, "seconds": seconds})
    return rows


def _seconds(prices: dict[str, Any], drafted: IntArray, verified: IntArray) -> float:
    """By the policy's table, 12% slower and 0.2 ms later."""
    batch, mean = verified.size, float(verified.mean())
    rest = float(np.interp(mean, np.arange(MAX_DEPTH + 1), prices["rest_seconds"][batch]))
    positions = float(np.array(prices["effective_by_depth"])[verified].sum()) / prices["expert_step"]
    experts = float(np.interp(positions, np.arange(len(prices["expert_seconds"])), prices["expert_seconds"]))
    by_depth = prices["draft_seconds"]
    active = [int((drafted > index).sum()) for index in range(int(drafted.max(initial=0)))]
    drafting = sum(float(by_depth[count][index + 1] - by_depth[count][index]) for index, count in enumerate(active))
    return 0.2e-3 + 1.12 * (rest + experts + drafting)


if __name__ == "__main__":
    record()
