"""Shared by the tests of a live engine: a policy file, a driver, a step."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from specmargin.acceptance.schema import CalibratorFile
from specmargin.live.board import Board
from specmargin.live.capture import Identity
from specmargin.live.driver import Agreed, Driver
from specmargin.live.driver_builder import build_driver
from specmargin.live.guard import Guard
from specmargin.live.policy_maker import make_policy
from specmargin.live.policy_schema import PolicyFile, policy_text
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import Mode, read_settings
from specmargin.live.vllm import plugin
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.tables import study_table
from specmargin.step import FloatArray

DEPTH = 4
IDENTITY = Identity(model="target", speculator="draft_model:draft", config=f"k{DEPTH}")


def table() -> PriceTable:
    return study_table(by_pass=False, max_batch=8, max_depth=DEPTH)


def sample() -> FloatArray:
    return np.asarray(np.cumprod(np.random.default_rng(0).beta(3.0, 1.0, (64, DEPTH)), axis=1))


def policy_file(*, gated: bool = True, calibrator_depths: int = DEPTH, acceptance: float = 0.8) -> PolicyFile:
    """Prices of the study; a calibrator that changes confidences little."""
    d = calibrator_depths
    weights = np.zeros(2 * d + 15)
    weights[d] = 4.0  # log-odds of the confidence
    return make_policy(
        table=table(),
        survival=acceptance ** np.arange(1.0, DEPTH + 1.0),
        schedule=[(1, 2, 3), (3, 8, 1)],
        model="target",
        drafter="model",
        device="test",
        context=512.0,
        sources={"prices": "assumed: test"},
        calibrator=CalibratorFile(weights=weights.tolist(), depths=d) if gated else None,
        sample=sample() if gated else None,
    )


def write_policy(folder: Path, **file: Any) -> Path:
    path = folder / "test.policy.json"
    path.write_text(policy_text(policy_file(**file)))
    return path


def built(
    folder: Path,
    given: dict[str, Any],
    *,
    device_gate: bool = False,
    agreed: Agreed | None = None,
    log: list[str] | None = None,
    **file: Any,
) -> Driver:
    """A driver as an engine builds it."""
    path = write_policy(folder, **file)
    patient = {"slowest_decision_seconds": 60.0}  # a slow test machine is not a fault
    settings = read_settings({"policy": str(path)} | patient | given, "test")
    return build_driver(
        settings,
        max_depth=DEPTH,
        candidates=None,
        identity=IDENTITY,
        engine="0",
        log=(log if log is not None else []).append,
        device_gate=device_gate,
        agreed=agreed,
    )


def register_in(monkeypatch: pytest.MonkeyPatch, engine_args: type[Any], **configuring: Any) -> None:
    """Register the plug-in with a stub of vLLM's `EngineArgs`. `configuring`: members of the module that imports
    vLLM."""
    modules: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": engine_args},
        "specmargin.live.vllm.configuration": {"configure": lambda _: None, **configuring},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    plugin.register()


def bare(policy: Any, mode: Mode = Mode.ADAPTIVE, **options: Any) -> Driver:
    guard = Guard(log=lambda _: None, faults_in_a_row=10**9, slowest_seconds=1e9)
    return Driver(mode=mode, policy=policy, max_depth=DEPTH, guard=guard, board=Board(), **options)


def done(
    ids: Sequence[str],
    verified: Sequence[int],
    accepted: Sequence[int],
    *,
    seconds: float = 0.01,
    prompt_tokens: int = 0,
) -> StepDone:
    return StepDone.of(
        request_ids=list(ids),
        verified=np.array(verified, dtype=np.int64),
        accepted=np.array(accepted, dtype=np.int64),
        contexts=[100] * len(ids),
        prompt_tokens=prompt_tokens,
        seconds=seconds,
    )
