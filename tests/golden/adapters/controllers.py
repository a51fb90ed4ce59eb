"""A controller from a policy file, as a live engine makes it, and its decisions as plain numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.live.gate_messages import Returned, expectation
from specmargin.live.policy_maker import make_policy
from specmargin.live.policy_schema import parse_policy, policy_text, read_policy
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel.types import LookAhead
from specmargin.policies.policy import Decision, Outcome
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.tables import scenario_table

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Gate = Literal["none", "policy", "workers"]


class LiveController:
    """Decides a step in this order: how deep to draft, where single drafts end, what to verify; then learns."""

    def __init__(self, policy: Path, *, gate: Gate, candidates: tuple[int, ...] | None) -> None:
        file, self._gate = read_policy(policy), gate
        self._controller = Controller(
            table=file.table.table,
            prior_survival=np.array(file.survival),
            look_ahead=_look_ahead(policy) if gate == "policy" else None,
            settings=ControllerSettings(candidates=candidates, gated_by_workers=gate == "workers"),
        )
        self._decision = Decision(0)
        self._ignored_signals = self._ignored_outcomes = 0

    def draft_depth(self, batch: int) -> int:
        self._decision = self._controller.draft(batch)
        return self._decision.depth

    def draft_lengths(self, survival: FloatArray, depth: int) -> IntArray:
        """Of each sequence, in an engine that can end single drafts between two passes."""
        if depth != self._decision.depth:
            raise AssertionError("drafts are as deep as was decided")
        return self._controller.draft_lengths(self._decision, survival)

    def verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:
        self._decision = self._controller.verify(self._decision, survival, drafted)
        self._ignored_signals += self._decision.ignored
        depths = self._decision.verify_depths
        return drafted if depths is None else depths

    def learn(
        self, *, drafted: IntArray, verified: IntArray, accepted: IntArray, seconds: float, survival: FloatArray
    ) -> None:
        decision = self._decision
        if self._gate == "workers":
            before = np.concatenate([np.ones((drafted.size, 1)), survival[:, :-1]], axis=1)
            conditional = (survival / np.maximum(before, 1e-9)).astype(np.float32)
            back = Returned(verified.astype(np.int32), conditional)
            decision = decision._replace(expected=expectation(back, drafted, verified, survival.shape[1]))
        outcome = Outcome(decision=decision, drafted=drafted, verified=verified, accepted=accepted, seconds=seconds)
        self._ignored_outcomes += not self._controller.observe(outcome)

    def learned(self) -> dict[str, Any]:
        """What it believes, in numbers that any controller could give."""
        controller = self._controller
        return {
            "survival": controller.mean_survival().tolist(),
            "goodput_of_1": controller.expected_goodput(1).tolist(),
            "goodput_of_8": controller.expected_goodput(8).tolist(),
            "goodput_of_64": controller.expected_goodput(64).tolist(),
            "ignored_signals": self._ignored_signals,
            "ignored_outcomes": self._ignored_outcomes,
        }


def _look_ahead(policy: Path) -> LookAhead:
    """Recorded beside the policy file."""
    recorded = json.loads(Path(str(policy).replace(".policy.", ".look_ahead.")).read_text(encoding="utf-8"))
    arrays = {name: np.array(values) for name, values in recorded.items()}
    return LookAhead(option_by_batch=np.ones((arrays["rate_by_batch"].size, 2)), **arrays)


# --- policy files ---


def look_ahead_of(policy: str, sample: FloatArray) -> str:
    """For a gate that is part of the policy and stops no draft early."""
    ahead = look_ahead(parse_policy(policy, "recorded").table.table, sample, early_stop=False)
    names = ("depth_by_batch", "rate_by_batch", "next_acceptance")
    return json.dumps({name: getattr(ahead, name).tolist() for name in names}) + "\n"


def policy_of(drafter: str, sample: FloatArray, *, max_batch: int, max_depth: int) -> str:
    """What `specmargin plan --policy` writes for a drafter of Qwen3.6-35B-A3B on an H200, gated by this sample."""
    request = ScenarioRequest(model="qwen3.6-35b-a3b", gpu="h200", prices="laws", drafter=drafter)
    _, scenario = scenario_of(request)
    pricer = Pricer(scenario)
    made = make_policy(
        table=scenario_table(pricer, Setting.of(scenario, max_depth=max_depth), max_batch=max_batch),
        survival=scenario.survival.up_to(max_depth),
        schedule=[(1, max_batch, 1)],
        model=scenario.architecture.name,
        drafter=drafter,
        device=scenario.device.name,
        context=scenario.context,
        sources={name: str(source) for name, source in pricer.sources.items()},
        sample=sample,
    )
    return policy_text(made)
