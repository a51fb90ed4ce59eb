"""NUMBA_DISABLE_JIT=1: the compiled code as plain Python that a debugger can step through, with the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

_CONTROLLER = """
import json
import numpy as np
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel.types import Expectation
from specmargin.policies.policy import Outcome
from specmargin.policies.tables import study_table

decided = []
for gated in (False, True):
    controller = Controller(
        table=study_table(by_pass=True, max_batch=8, max_depth=3),
        prior_survival=0.8 ** np.arange(1.0, 4.0),
        settings=ControllerSettings(gated_by_workers=gated),
    )
    for step in range(40):
        decision = controller.draft(4)
        drafted = np.full(4, decision.depth)
        accepted = np.minimum(drafted, [0, 1, 2, 3])
        acceptance = np.tile([[0.9, 0.8, 0.1]], (4, 1))
        expected = Expectation(drafted, 2.0, 3.0, np.zeros((2, 3)), acceptance) if gated else None
        outcome = Outcome(
            decision=decision._replace(expected=expected),
            drafted=drafted,
            verified=drafted,
            accepted=accepted,
            seconds=0.01 + 0.001 * (step % 3),
        )
        assert controller.observe(outcome)
        decided.append([int(decision.depth), bool(decision.gated)])
    decided.append(np.round(controller.expected_goodput(4), 6).tolist())
print(json.dumps(decided))
"""
_PLAN = ["-m", "specmargin", "plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--json"]
_LOAD = ["--concurrency", "2", "--requests", "3", "--osl", "20", "--policy", "controller", "--json"]
_SIMULATE = ["-m", "specmargin", "simulate", "qwen3.6-35b-a3b", "--gpu", "h200", *_LOAD]


def _printed(*arguments: str, compiled: bool) -> object:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0" if compiled else "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _values(printed: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Every value of a JSON document with its place."""
    match printed:
        case dict():
            for name, value in printed.items():
                yield from _values(value, f"{place}.{name}")
        case list():
            for i, value in enumerate(printed):
                yield from _values(value, f"{place}[{i}]")
        case _:
            yield place, printed


@pytest.mark.parametrize("arguments", [["-c", _CONTROLLER], _PLAN, _SIMULATE], ids=["controller", "plan", "simulate"])
def test_the_same_without_compilation(arguments: list[str]) -> None:
    """Sums may be taken in another order."""
    plain, compiled = (list(_values(_printed(*arguments, compiled=one))) for one in (False, True))
    assert [place for place, _ in plain] == [place for place, _ in compiled]
    for (place, one), (_, other) in zip(plain, compiled, strict=True):
        assert one == (pytest.approx(other, rel=1e-9) if isinstance(other, float) else other), place
