"""Recorded steps replayed through controllers: what they decide in each, and what they have learned.

The steps are fixed data: what came of a step does not depend on what is decided now, so one decision that changes does
not change all that follow, except through what is learned. `record.py` made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tests.golden.adapters.controllers import Gate, LiveController
from tests.golden.comparison import Table
from tests.golden.files import DATA, read_frame
from tests.golden.policies import MAX_DEPTH

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEVELS = 65_534  # of a recorded survival
NO_SIGNAL = 65_535  # a confidence that was not a number
LEARNED_EVERY = 150  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """A controller of the recording. `gate`: who knows confidences: the policy before it verifies, the workers of an
    engine, or nobody."""

    name: str
    policy: str
    gate: Gate = "none"
    candidates: tuple[int, ...] | None = None

    def controller(self) -> LiveController:
        return LiveController(DATA / f"{self.policy}.policy.json", gate=self.gate, candidates=self.candidates)


PLAYERS = (
    Player(name="gated", policy="passes", gate="workers"),
    Player(name="without confidences", policy="passes"),
    Player(name="candidates 1 3 5", policy="passes", candidates=(1, 3, 5)),
    Player(name="early stop", policy="passes", gate="policy"),
    Player(name="block drafter", policy="block", gate="policy"),
    Player(name="drafts that stop paying", policy="passes"),
)

DECISIONS: Mapping[str, pl.DataType] = {
    "controller": pl.String(),
    "step": pl.Int64(),
    "draft_depth": pl.Int64(),
    "draft_lengths": pl.List(pl.Int64()),  # by sequence, where single drafts may end early
    "verify_depths": pl.List(pl.Int64()),  # by sequence
}
LEARNED: Mapping[str, pl.DataType] = {
    "controller": pl.String(),
    "step": pl.Int64(),
    "survival": pl.List(pl.Float64()),  # by depth
    "goodput_of_1": pl.List(pl.Float64()),  # sequences, by depth
    "goodput_of_8": pl.List(pl.Float64()),
    "goodput_of_64": pl.List(pl.Float64()),
    "ignored_signals": pl.Int64(),
    "ignored_outcomes": pl.Int64(),
}
KEY = ("controller", "step")
SCHEMAS = {"decisions": DECISIONS, "learned": LEARNED}
AXES = dict.fromkeys(("survival", "goodput_of_1", "goodput_of_8", "goodput_of_64"), "depth")
SIGNALS, OUTCOMES = "rounds-signals", "rounds-outcomes"  # recorded files that nothing regenerates
INPUTS: Mapping[str, Mapping[str, pl.DataType]] = {
    SIGNALS: {"step": pl.Int64(), "survival": pl.List(pl.Int64())},
    OUTCOMES: {
        "controller": pl.String(),
        "step": pl.Int64(),
        "drafted": pl.List(pl.Int64()),  # by sequence, as the next two
        "verified": pl.List(pl.Int64()),
        "accepted": pl.List(pl.Int64()),
        "seconds": pl.Float64(),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """As it was recorded: by sequence, but for the seconds. NaN seconds: it held prompts too."""

    number: int
    survival: FloatArray  # (sequences, depth)
    drafted: IntArray
    verified: IntArray
    accepted: IntArray
    seconds: float


def survivals(levels: IntArray) -> FloatArray:
    """Recorded as whole numbers; NaN where there was no signal."""
    return np.where(levels == NO_SIGNAL, np.nan, levels / LEVELS).reshape(-1, MAX_DEPTH)


@cache
def _signals() -> pl.DataFrame:
    return read_frame(SIGNALS, INPUTS[SIGNALS])


@cache
def _outcomes() -> pl.DataFrame:
    return read_frame(OUTCOMES, INPUTS[OUTCOMES])


def recorded_steps(player: str) -> Iterator[Step]:
    frame = _outcomes().filter(pl.col("controller") == player).join(_signals(), on="step").sort("step")
    for row in frame.iter_rows(named=True):
        yield Step(
            number=row["step"],
            survival=survivals(np.array(row["survival"], dtype=np.int64)),
            **{name: np.array(row[name], dtype=np.int64) for name in ("drafted", "verified", "accepted")},
            seconds=row["seconds"],
        )


def replay(player: Player) -> dict[str, list[dict[str, Any]]]:
    """Rows of both tables."""
    controller = player.controller()
    decisions, learned = [], []
    for step in recorded_steps(player.name):
        key = {"controller": player.name, "step": step.number}
        decisions.append(key | decide(player, controller, step.survival, step.drafted))
        controller.learn(
            drafted=step.drafted,
            verified=step.verified,
            accepted=step.accepted,
            seconds=step.seconds,
            survival=step.survival,
        )
        if (step.number + 1) % LEARNED_EVERY == 0:
            learned.append(key | controller.learned())
    return {"decisions": decisions, "learned": learned}


def decide(
    player: Player, controller: LiveController, survival: FloatArray, drafted: IntArray | None = None
) -> dict[str, Any]:
    """One step's decisions. `drafted`: what was drafted in it; as decided here, where nothing is said."""
    batch = survival.shape[0]
    depth = controller.draft_depth(batch)
    lengths = controller.draft_lengths(survival, depth) if player.name == "early stop" else None
    if drafted is None:
        drafted = np.full(batch, depth) if lengths is None else lengths
    verify = controller.verify_depths(survival, drafted)
    return {
        "draft_depth": depth,
        "draft_lengths": None if lengths is None else lengths.tolist(),
        "verify_depths": verify.tolist(),
    }


def replayed_tables(players: tuple[Player, ...] = PLAYERS) -> list[Table]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
    for player in players:
        for name, entries in replay(player).items():
            rows[name] += entries
    return [as_table(name, entries) for name, entries in rows.items()]


def as_table(name: str, rows: list[dict[str, Any]]) -> Table:
    frame = pl.DataFrame(rows, schema=dict(SCHEMAS[name]), orient="row").sort(KEY)
    return Table(name=name, keys=KEY, frame=frame, axes=AXES)
