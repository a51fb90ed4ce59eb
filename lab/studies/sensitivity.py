"""How much goodput depends on each tuned number of the controller: each is halved and doubled. No GPU is needed.

    python -m lab.studies.sensitivity                        all of `policies/kernel/tuning.py`: 25 minutes of a core
    python -m lab.studies.sensitivity --only cliff noise     some of them

Prints by how many percent goodput over the best fixed depth changes, with the standard error over seeds, on

- h200: the gate in vLLM's workers, on rounds that were measured on an H200 (`lab.studies.replayed_gate`),
- swing: a load swing without a gate, on a machine whose speed jumps by 20% (`lab.studies.replayed_swing`),
- simulated: the gate of the simulator, on the reference bank, while a third of the traffic accepts half as much as its
  confidences say.

A row is printed when it is finished. Another value sends a replay another way, so a change has an error even where the
number does not matter: what all rows together say of it is printed at the end. A number that a replay does not use
changes nothing there: an empty cell.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lab import REFERENCE_BANK
from lab.live.models import CATEGORIES
from lab.live.swing import FIXED
from lab.studies.replayed_gate import make_servers, plan_policy, speeds
from lab.studies.replayed_swing import DEEPEST, Swing, texts_of
from lab.terminal import parser, run, tracked
from specmargin.acceptance.bank import read_bank
from specmargin.errors import InputError
from specmargin.live.policy_schema import read_policy
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.tuning import Tuning
from specmargin.policies.kernel.types import LookAhead
from specmargin.policies.study.ladder import Contest, fixed_goodput
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.study.replay import Replay, draw_batches, replay
from specmargin.step import FloatArray, IntArray

NAMES = tuple(field.name for field in fields(Tuning))
FACTORS = (0.5, 2.0)
SEEDS = 3
GATE_LOADS = (1, 4, 16, 64, 256)
SWING_CYCLES, JUMPS, SHORTEST_TEXT = 16, 0.2, 120
SIMULATED_LOADS, SIMULATED_SEQUENCES, SIMULATED_SAMPLE = (1, 8, 64), 900, 1024
TRAFFICS = (1.0, 0.5, 1.0)  # share of the tokens that would be accepted, one after the other

Scene = Callable[[Tuning, int], FloatArray]  # by load: ln of goodput over that of the best fixed depth, for a seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Of one number, by a factor: by how much ln of goodput changes in one replay, by seed."""

    by_seed: FloatArray

    @property
    def mean(self) -> float:
        return float(self.by_seed.mean())

    @property
    def error(self) -> float:
        return float(self.by_seed.std(ddof=1) / math.sqrt(self.by_seed.size)) if self.by_seed.size > 1 else math.nan

    @property
    def is_used(self) -> bool:
        return bool((self.by_seed != 0.0).any())

    def __str__(self) -> str:
        return f"{100.0 * self.mean:+.2f} ± {100.0 * self.error:.2f}" if self.is_used else ""


class Scenes:
    """The replays, with what does not depend on the controller's numbers computed once."""

    def __init__(self, folder: Path) -> None:
        self._gate_policy, self._swing_policy = folder / "gate.policy.json", folder / "swing.policy.json"
        plan_policy(self._gate_policy)
        plan_policy(self._swing_policy, depth=DEEPEST, max_batch=64)
        self._best: dict[tuple[str, int], FloatArray] = {}
        self.by_name: dict[str, Scene] = {"h200": self.h200, "swing": self.swing, "simulated": self.simulated}

    # --- the gate in the workers, on measured rounds ---

    def h200(self, tuning: Tuning, seed: int) -> FloatArray:
        best = self._once("h200", seed, lambda: self._h200(seed, controllers=()).max(axis=0))
        return np.asarray(np.log(self._h200(seed, controllers=("gate",), fixed=(), tuning=tuning)[0] / best))

    def _h200(self, seed: int, **contestants: object) -> FloatArray:
        """Tokens per second by contestant and load; 0 where a depth has no CUDA graph."""
        servers = make_servers(self._gate_policy, seed, **contestants)  # type: ignore[arg-type]
        made = [speeds(servers, batch, kind) for batch in GATE_LOADS for kind in (0, 1)]
        return np.array([[load.get(name, 0.0) for load in made] for name in servers])

    # --- the load swing ---

    def swing(self, tuning: Tuning, seed: int) -> FloatArray:
        fixed = Swing(policy=self._swing_policy, texts=self._texts, jumps=JUMPS, turns=1, cycles=SWING_CYCLES)
        best = self._once(
            "swing", seed, lambda: np.max([fixed.fixed_rates(seed, depth) for depth in (0, *FIXED)], axis=0)
        )
        return np.asarray(np.log(np.array(replace(fixed, tuning=tuning).controller_rates(seed)) / best))

    @cached_property
    def _texts(self) -> dict[str, list[IntArray]]:
        return {category: texts_of(category, SHORTEST_TEXT) for category in CATEGORIES}

    # --- the simulator's gate ---

    def simulated(self, tuning: Tuning, seed: int) -> FloatArray:
        logs = []
        for batch in SIMULATED_LOADS:
            batches = draw_batches(self._contest.played.count, batch, sequences=SIMULATED_SEQUENCES, seed=seed)
            controller = Controller(
                table=self._table,
                prior_survival=self._contest.calibrated_sample.mean(axis=0),
                look_ahead=self._ahead,
                settings=ControllerSettings(tuning=tuning),
            )
            made = [self._replayed(controller, share, batches) for share in TRAFFICS]
            goodput = sum(one.committed.sum() for one in made) / sum(one.seconds.sum() for one in made)
            accepted = np.concatenate([self._accepted(share)[np.stack(batches)] for share in TRAFFICS])
            logs.append(math.log(goodput / fixed_goodput(self._table, accepted).max()))
        return np.array(logs)

    def _replayed(self, controller: Controller, share: float, batches: Sequence[IntArray]) -> Replay:
        return replay(controller, self._table, self._contest.calibrated, self._accepted(share), batches)

    def _accepted(self, share: float) -> IntArray:
        return (self._contest.played.accepted_by_round * share).astype(np.int64)

    @cached_property
    def _contest(self) -> Contest:
        return Contest.of(read_bank([REFERENCE_BANK]), seed=0)

    @cached_property
    def _table(self) -> PriceTable:
        return read_policy(self._swing_policy).table.table

    @cached_property
    def _ahead(self) -> LookAhead:
        return look_ahead(self._table, self._contest.calibrated_sample[:SIMULATED_SAMPLE])

    def _once(self, scene: str, seed: int, make: Callable[[], FloatArray]) -> FloatArray:
        if (scene, seed) not in self._best:
            self._best[scene, seed] = make()
        return self._best[scene, seed]


def scaled(name: str, factor: float) -> Tuning:
    """All numbers as they are but this one."""
    value = getattr(Tuning(), name) * factor
    return replace(Tuning(), **{name: round(value) if isinstance(getattr(Tuning(), name), int) else value})


def changes(scenes: dict[str, Scene], names: Sequence[str], seeds: int) -> dict[tuple[str, str, float], Change]:
    """By number, replay and factor; a row is printed when it is finished."""
    as_shipped = {scene: _logs(play, Tuning(), seeds) for scene, play in scenes.items()}
    for scene, logs in as_shipped.items():
        loads = " ".join(f"{ratio:.3f}" for ratio in np.exp(logs.mean(axis=0)))
        print(f"{scene}: {math.exp(logs.mean()):.4f} of the best fixed depth; by load: {loads}")
    print("\n| number | value |" + "".join(f" {scene}, half | double |" for scene in scenes))
    print("| --- | ---: |" + " ---: | ---: |" * len(scenes))
    found = {}
    for name in tracked("numbers", names):
        for scene, play in scenes.items():
            for factor in FACTORS:
                by_seed = _logs(play, scaled(name, factor), seeds).mean(axis=1) - as_shipped[scene].mean(axis=1)
                found[name, scene, factor] = Change(by_seed=by_seed)
        cells = " | ".join(str(found[name, scene, factor]) for scene in scenes for factor in FACTORS)
        print(f"| `{name}` | {getattr(Tuning(), name):.6g} | {cells} |", flush=True)
    return found


def _logs(play: Scene, tuning: Tuning, seeds: int) -> FloatArray:
    """(seeds, loads)."""
    return np.array([play(tuning, seed) for seed in range(seeds)])


def pooled_error(found: dict[tuple[str, str, float], Change], scene: str) -> float:
    """Of a change of this replay, by all rows that changed anything."""
    used = [change.error for (_, of, _), change in found.items() if of == scene and change.is_used]
    return float(np.sqrt(np.mean(np.square(used)))) if used else math.nan


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", metavar="NAME", help="some numbers instead of all")
    options.add_argument("--seeds", type=int, default=SEEDS, help=f"of each replay, {SEEDS} by default; at least 2")
    chosen = options.parse_args()
    names = chosen.only or NAMES
    unknown = next((name for name in names if name not in NAMES), None)
    if unknown is not None:
        raise InputError(f"{unknown!r} is not a tuned number; known: {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as folder:
        scenes = Scenes(Path(folder)).by_name
        found = changes(scenes, names, max(chosen.seeds, 2))
    print("\nPercent of goodput over the best fixed depth. Standard error of one change, by all rows:")
    print(", ".join(f"{scene} {100.0 * pooled_error(found, scene):.2f}" for scene in scenes))


if __name__ == "__main__":
    run(main)
