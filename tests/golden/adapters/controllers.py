"""A controller from a policy file, as a live engine makes it, and its decisions as plain numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specmargin.decisions.policies.controller import Controller, ControllerSettings
from specmargin.decisions.policies.policy import Outcome
from specmargin.decisions.policies.tables import scenario_table
from specmargin.engines.live.making import make_policy
from specmargin.engines.live.policy_schema import policy_text, read_policy
from specmargin.scenario_options import ScenarioOptions

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class LiveController:
    """Decides, learns, and starts again from its saved state."""

    def __init__(self, policy: Path, *, gated: bool, candidates: tuple[int, ...] | None, early_stop: bool) -> None:
        self._file = read_policy(policy)
        self._gated = gated
        self._settings = ControllerSettings(candidates=candidates, early_stop=early_stop)
        self._controller = self._made()

    def _made(self) -> Controller:
        file = self._file
        ahead = file.look_ahead.look_ahead if self._gated and file.look_ahead is not None else None
        table = file.table.table
        return Controller(
            table=table, prior_survival=np.array(file.survival), look_ahead=ahead, settings=self._settings
        )

    @property
    def drafts_by_pass(self) -> bool:
        return self._controller.table.draft.by_pass and self._settings.early_stop

    def draft_depth(self, batch: int) -> int:
        return self._controller.draft_depth(batch)

    def keep_drafting(self, survival: FloatArray, depth: int) -> npt.NDArray[np.bool_]:
        return self._controller.keep_drafting(survival, depth)

    def verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:
        return self._controller.verify_depths(survival, drafted).copy()

    def learn(
        self, *, drafted: IntArray, verified: IntArray, accepted: IntArray, seconds: float, deciding_seconds: float
    ) -> None:
        decided = self._controller.take_gated()
        gated = None if decided is None else decided._replace(seconds=deciding_seconds)
        outcome = Outcome(drafted=drafted, verified=verified, accepted=accepted, seconds=seconds, gated=gated)
        self._controller.observe(outcome)

    def restart(self) -> None:
        """From what is kept of it, as JSON."""
        kept = json.loads(json.dumps(self._controller.state()))
        self._controller = self._made()
        if not self._controller.restore(kept):
            raise AssertionError("a controller does not take its own state back")

    def learned(self) -> dict[str, Any]:
        """What it believes, in numbers that any controller could give."""
        controller = self._controller
        return {
            "survival": controller.learned_survival().tolist(),
            "goodput_of_1": controller.expected_goodput(1).tolist(),
            "goodput_of_8": controller.expected_goodput(8).tolist(),
            "goodput_of_64": controller.expected_goodput(64).tolist(),
            "confidence_shift": float(controller.learned.shift[0]),
            "ignored_signals": controller.ignored_signals,
            "ignored_outcomes": controller.ignored_outcomes,
        }


# --- policy files ---


def policy_of(drafter: str, sample: FloatArray, *, max_batch: int, max_depth: int) -> str:
    """What `specmargin plan --policy` writes for a drafter of Qwen3.6-35B-A3B on an H200, gated by this sample."""
    _, scenario = ScenarioOptions(model="qwen3.6-35b-a3b", gpu="h200", prices="laws", drafter=drafter).one()
    made = make_policy(
        table=scenario_table(scenario, max_batch=max_batch, max_depth=max_depth),
        survival=scenario.survival.at(max_depth),
        schedule=[(1, max_batch, 1)],
        model=scenario.architecture.name,
        drafter=drafter,
        device=scenario.device.name,
        context=scenario.context,
        sources={name: str(source) for name, source in scenario.sources.items()},
        sample=sample,
    )
    return policy_text(made)
