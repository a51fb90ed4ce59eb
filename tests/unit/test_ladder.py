"""The ladder of policies."""

from __future__ import annotations

import numpy as np
import pytest

from specmargin.policies.policy import FixedDepth
from specmargin.policies.study.ladder import fixed_goodput
from specmargin.policies.study.replay import draw_batches, replay
from specmargin.policies.tables import study_table


@pytest.mark.parametrize("by_pass", [False, True])
@pytest.mark.parametrize("batch", [1, 16, 512])
def test_a_fixed_depth_is_worth_what_its_replay_gives(by_pass: bool, batch: int) -> None:
    table = study_table(by_pass=by_pass)
    accepted = np.random.default_rng(0).integers(0, table.max_depth + 1, 1000)
    batches = draw_batches(accepted.size, batch, sequences=600, seed=0)
    unused = np.zeros((accepted.size, table.max_depth))
    replayed = [
        replay(FixedDepth(depth=depth), table, unused, accepted, batches).goodput
        for depth in range(table.max_depth + 1)
    ]
    assert fixed_goodput(table, accepted[np.stack(batches)]) == pytest.approx(replayed, rel=1e-12)
