"""The price table of policies is the plan's own grid: every batch, every depth, and what fits a CUDA graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specmargin.catalog.routing_profiles import bundled_routing
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.hardware.layout import Layout
from specmargin.live.policy_schema import TableFile
from specmargin.modes import Parallel
from specmargin.policies.policy import ScheduledDepth
from specmargin.policies.tables import scenario_table
from specmargin.prices.drafters import Drafter
from specmargin.prices.model import EngineTime
from specmargin.routing.profile import UNIFORM
from tests.scenarios import scenario

engine_times = st.builds(
    EngineTime,
    step_seconds=st.floats(0.0, 5e-3),
    first_pass_seconds=st.floats(0.0, 1e-3),
    draft_pass_seconds=st.floats(0.0, 1e-3),
    off_step_seconds=st.floats(0.0, 1e-3),
    graph_limit=st.none() | st.integers(1, 1024),
    eager_layer_seconds=st.floats(0.0, 2e-3),
    floor_layer_seconds=st.floats(0.0, 2e-4),
)


@settings(max_examples=60)
@given(
    st.sampled_from(["qwen3-30b-a3b", "qwen3.6-35b-a3b", "llama-3.1-8b"]),
    st.sampled_from(["free", "eagle", "dflash", "overlapped"]),
    st.booleans(),
    engine_times,
    st.sampled_from([1, 2]),
    st.integers(1, 200),
    st.integers(1, 8),
)
def test_the_table_is_the_plans_grid(
    model: str, drafter: str, local: bool, time: EngineTime, ranks: int, max_batch: int, max_depth: int
) -> None:
    base = scenario(
        model,
        drafter="eagle" if drafter == "overlapped" else drafter,
        routing=bundled_routing("qwen3.6-35b-a3b") if local and model != "llama-3.1-8b" else UNIFORM,
        engine_time=time,
        layout=Layout(gpus=ranks, parallel=Parallel.DP_EP if ranks > 1 and model != "llama-3.1-8b" else Parallel.TP),
    )
    pricer = Pricer(replace(base, drafter=_overlapped(base.drafter)) if drafter == "overlapped" else base)
    setting = Setting(max_depth=max_depth, graph_limit=time.graph_limit)
    table = scenario_table(pricer, setting, max_batch=max_batch)
    grid = pricer.grid(np.arange(1, max_batch + 1), max_depth)
    allowed = setting.allowed(grid)
    for i, batch in enumerate(range(1, max_batch + 1)):
        np.testing.assert_allclose(table.equal_seconds(batch), grid.verify_seconds[i], rtol=1e-9)
        np.testing.assert_allclose(table.round_seconds(batch), grid.round_seconds[i], rtol=1e-9)
        assert ((np.arange(max_depth + 1) <= table.graph_depth_by_batch[batch]) == allowed[i]).all()
    scheduled = ScheduledDepth.homogeneous(table, pricer.scenario.survival.up_to(max_depth)).depth_by_batch[1:]
    index, best = np.arange(max_batch), setting.best_depths(grid)
    np.testing.assert_allclose(grid.goodput[index, scheduled], grid.goodput[index, best], rtol=1e-9)
    written = TableFile.of(table).table  # six digits
    for batch in range(1, max_batch + 1):
        np.testing.assert_allclose(written.round_seconds(batch), table.round_seconds(batch), rtol=1e-5)
    assert (written.graph_depth_by_batch == table.graph_depth_by_batch).all()


def _overlapped(inner: Drafter) -> Drafter:
    return replace(inner, name="overlapped", hit_rate=0.7)
