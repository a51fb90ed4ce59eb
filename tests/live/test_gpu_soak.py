"""The injectors of the GPU soak, on a gate with vLLM's own classes: each is counted, and vLLM decides instead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lab.gpu import soak
from lab.gpu.serving import count_budgets

from tests.live.gate import DEPTH, add_requests, admitted_drafts, make_manager, torch

pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.mark.parametrize(("name", "fault", "steps"), [fault[1:] for fault in soak.GATE_FAULTS])
def test_an_injected_fault_is_counted_and_the_step_is_vllms(name: str, fault: Any, steps: int) -> None:
    manager = make_manager()
    serving: Any = SimpleNamespace(manager=manager, driver=None)
    tokens, drafts = add_requests(manager, 3, 0.5)
    counted = count_budgets(manager)
    batch = SimpleNamespace(num_reqs=3, idx_mapping=torch.arange(3))
    with fault(serving):
        for _ in range(steps):
            manager.guard.step_done()
            manager._confidence_probs[:3] = 0.5
            manager._recent[:, :3] = 0.5
            if name == "kernel raises":
                manager.prices.budget = lambda *_: 4  # some drafts, but not all, so that there is something to rank
            if "not numbers" in name:
                manager.record_confidences(torch.full((8, DEPTH), 0.4), batch)
            total = manager.get_num_tokens(tokens, drafts)
            assert sum(admitted_drafts(manager, tokens)) == total - 3
    assert len(counted) == steps
    faults = sum(manager.guard.faults.values())
    assert faults == {"confidences are not numbers": 0}.get(name, min(steps, 5))
    assert manager.guard.off == (steps == soak.LAST_FAULT_STEPS)


def test_growth_at_rest_is_a_leak() -> None:
    rest = {"allocated": 10**9, "reserved": 2 * 10**9, "device": 3 * 10**9, "host": 10**9, "requests_kept": 0}
    samples = [{"at": float(i), **rest, "host": 10**9 + 1000 * i} for i in range(12)]
    fine = soak.verdict([rest, rest, rest | {"allocated": 10**9 + 1000}], samples)
    assert fine["no_leak"]
    assert fine["slopes"]["host_bytes_per_second"] == 1000.0
    for leak in ({"allocated": 10**9 + 2**21}, {"reserved": 3 * 10**9}, {"host": 2 * 10**9}, {"requests_kept": 2}):
        assert not soak.verdict([rest, rest, rest | leak], samples)["no_leak"], leak
