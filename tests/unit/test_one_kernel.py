"""Simulator and live engine are one kernel: the same rounds through both give the same decisions, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specmargin.live.board import Board
from specmargin.live.driver import Driver
from specmargin.live.guard import Guard
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import Mode
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel.gains import GateGains
from specmargin.policies.kernel.learn import Learned
from specmargin.policies.kernel.times import Times
from specmargin.policies.policy import Decision, Outcome, Policy, WholeDrafts
from specmargin.policies.study.lookahead import look_ahead
from specmargin.simulator import run
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.policies import PolicyChoice, PolicyInputs
from specmargin.simulator.results import Result
from specmargin.simulator.rounds import RoundBank, captured_rounds
from specmargin.simulator.run import simulate
from specmargin.simulator.workload import ClosedLoop, FixedLength, UniformLength
from specmargin.step import FloatArray
from tests.simulations import serving

DEPTH = 4


class ThroughDriver(WholeDrafts):
    """A policy that asks a live driver, which asks the controller: what an engine's plug-in does in a step."""

    name = "through a driver"

    def __init__(self, controller: Controller, *, faults: list[str]) -> None:
        self.driver = Driver(
            mode=Mode.ADAPTIVE,
            policy=controller,
            max_depth=DEPTH,
            guard=Guard(log=faults.append, slowest_seconds=1e9),
            board=Board(),
        )

    def draft(self, batch: int) -> Decision:
        depth = self.driver.draft_depth([str(i) for i in range(batch)])
        assert depth is not None
        return Decision(depth)

    def observe(self, outcome: Outcome) -> bool:
        """The simulator's rounds count the drafting before them; an engine's steps the drafting at their end. Here both
        are told of the same rounds."""
        driver, batch = self.driver, outcome.verified.size
        step = StepDone.of(
            request_ids=[str(i) for i in range(batch)],
            verified=outcome.verified.copy(),
            accepted=outcome.accepted.copy(),
            contexts=[0] * batch,
            prompt_tokens=0,
            seconds=outcome.seconds,
        )
        driver.done(step, int(outcome.drafted.max(initial=0)))
        return True


def bank(seed: int) -> RoundBank:
    """Confidences as an engine hands them over, in 32 bits: survivals are their products."""
    generator = np.random.default_rng(seed)
    sure = generator.random((4000, 1)) < 0.5
    confidence = np.where(sure, generator.beta(9.0, 1.0, (4000, DEPTH)), generator.beta(1.0, 2.0, (4000, DEPTH)))
    confidence = np.maximum(confidence, 0.01).astype(np.float32).astype(np.float64)
    survival: FloatArray = np.asarray(np.cumprod(confidence, axis=1))
    accepted = np.cumprod(generator.random((4000, DEPTH)) < confidence, axis=1).sum(axis=1)
    return captured_rounds(["all"] * 4000, np.arange(4000) // 40, accepted, survival, "drawn for a test")


class ThroughPython(WholeDrafts):
    """A policy that asks the methods of the controller, as a replay does, instead of its kernel."""

    name = "through Python"

    def __init__(self, controller: Controller) -> None:
        self.draft, self.verify = controller.draft, controller.verify  # type: ignore[method-assign]
        self.draft_lengths, self.observe = controller.draft_lengths, controller.observe  # type: ignore[method-assign]


def played(
    monkeypatch: pytest.MonkeyPatch, *, gated: bool, candidates: tuple[int, ...] | None, compiled: bool
) -> tuple[Result, Controller, list[str]]:
    """One simulated load under one controller: inside the compiled loop, or asked: if it gates, by its methods;
    otherwise through a live driver."""
    controllers: list[Controller] = []
    faults: list[str] = []

    def find(name: str, inputs: PolicyInputs) -> PolicyChoice:
        table = inputs.table()
        ahead = look_ahead(table, inputs.sample()) if gated else None
        settings = ControllerSettings(candidates=candidates)
        own = Controller(table=table, prior_survival=inputs.bank.prior, look_ahead=ahead, settings=settings)
        controllers.append(own)
        asked: Policy = ThroughPython(own) if gated else ThroughDriver(own, faults=faults)
        return PolicyChoice(name=name, policy=own if compiled else asked, held_depth=inputs.max_depth)

    monkeypatch.setattr(run, "find_policy", find)
    load = serving(
        arrivals=ClosedLoop(users=24, requests=150),
        prompt=UniformLength(least=20, most=400),
        output=FixedLength(tokens=120),
        drafter="mtp",
        model="qwen3.6-35b-a3b",
        engine=EngineSettings(max_num_seqs=32, max_num_batched_tokens=512),
        bank=bank(3),
        policy="controller",
        max_depth=DEPTH,
    )
    return simulate(replace(load, compiled=compiled), log_steps=True), controllers[0], faults


def parts(learned: Learned) -> list[Any]:
    """All arrays of it."""
    return [*learned.times, *learned.gate, *(part for part in learned if not isinstance(part, Times | GateGains))]


@pytest.mark.parametrize(
    ("gated", "candidates"),
    [(True, None), (False, None), (False, (0, 1, 3))],
    ids=["gated", "through a driver", "through a driver, some depths"],
)
def test_the_same_rounds_give_the_same_decisions(
    monkeypatch: pytest.MonkeyPatch, gated: bool, candidates: tuple[int, ...] | None
) -> None:
    inside, own, _ = played(monkeypatch, gated=gated, candidates=candidates, compiled=True)
    through, other, faults = played(monkeypatch, gated=gated, candidates=candidates, compiled=False)
    assert faults == []
    steps, driver_steps = inside.step_columns(), through.step_columns()
    for name in ("draft_depth", "verified", "accepted", "committed", "seconds"):
        np.testing.assert_array_equal(steps[name], driver_steps[name], err_msg=name)
    for one, two in zip(parts(own.kernel().learned), parts(other.kernel().learned), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
    # The load has something to decide: several depths, drafts cut short, steps with prompts.
    assert np.unique(steps["draft_depth"]).size > 1
    assert (steps["prefill_tokens"] > 0).any()
    if gated:
        whole = steps["draft_depth"][:-1] * steps["sequences"][1:]
        assert (steps["verified"][1:] < whole).any()
    if candidates is not None:
        assert set(np.unique(steps["draft_depth"])) <= set(candidates)
