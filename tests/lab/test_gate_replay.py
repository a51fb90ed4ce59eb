"""The whole loop of the gate in the workers, replayed on rounds that were measured on an H200 (`lab/studies`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lab.studies.replayed_gate import make_servers, plan_policy, play_load


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "gate.policy.json"
    plan_policy(path)
    return path


def test_the_gate_keeps_up_with_the_best_depth_at_every_load(policy: Path) -> None:
    """Loads and traffics follow each other in one server, as in the benchmark. One sequence is not gated; at 16 all
    experts are read anyway, so whole drafts are best; at 256 the gate drafts deeper than a CUDA graph holds for all."""
    servers, ratios = make_servers(policy), {}
    for batch in (1, 4, 16, 64, 256):
        for kind in (0, 1):
            speed = play_load(servers, batch, kind)
            ratios[batch, kind] = speed["gate"], speed["controller"]
            print(batch, servers["gate"].bank.names[kind], *(f"{name} {value:.3f}" for name, value in speed.items()))
    gate, alone = np.array(list(ratios.values())).T
    assert gate.min() > 0.98
    assert alone.min() > 0.98
    assert np.exp(np.log(gate).mean()) > np.exp(np.log(alone).mean()) + 0.01
