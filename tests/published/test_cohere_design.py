"""What Cohere concludes for the design of experts, under our prices.

"Why MoE models get more from speculative decoding", Cohere, 21 April 2026,
https://cohere.com/blog/mixture-of-experts-models-get-more-from-speculative-decoding: at a high target batch a lower
k/n and a higher ratio of routed to shared experts keep verification bandwidth-bound, so speculation keeps its speed-up;
at a low one shared experts help, because all positions of a run read the same ones. The claims, as our issue puts them,
are about speed-up. What they do to goodput is asserted beside them; docs/results/design-space.md has the numbers.

Priced with a graph for every step: vLLM's limit of 512 positions would cut depth at high batches, whatever the experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.architecture.variants import ExpertShape, shape_of
from specmargin.decisions.design import DesignRow, design_row
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting

SETTINGS = [
    (model, gpu, prices, routing)
    for model, gpu in (("qwen3.6-35b-a3b", "h200"), ("qwen3-30b-a3b", "h100"))
    for prices in ("laws", "datasheet")
    for routing in (None, "uniform")
]
LOW, HIGH = 1, 256
MAX_DEPTH = 8


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda setting: "-".join(map(str, setting)))
def setting(request: pytest.FixtureRequest) -> Scenario:
    model, gpu, prices, routing = request.param
    _, scenario = scenario_of(ScenarioRequest(model=model, gpu=gpu, prices=prices, routing=routing))
    return _with_every_graph(scenario)


def _with_every_graph(scenario: Scenario) -> Scenario:
    return replace(scenario, engine_time=replace(scenario.engine_time, graph_limit=None))


def _rows(scenario: Scenario, shapes: Sequence[ExpertShape], batch: int) -> list[DesignRow]:
    return [design_row(scenario, shape, Setting(max_depth=MAX_DEPTH), batch=batch) for shape in shapes]


def _rises(values: Sequence[float]) -> bool:
    return bool(np.all(np.diff(values) > 0))


def _speedups(rows: Sequence[DesignRow]) -> list[float]:
    return [row.speedup for row in rows]


def _goodputs(rows: Sequence[DesignRow]) -> list[float]:
    return [row.goodput_tokens_per_second for row in rows]


def _routed(experts: int, per_token: int, width: int) -> ExpertShape:
    return ExpertShape(experts=experts, experts_per_token=per_token, width=width, shared_width=0)


def _half_shared_then_none(scenario: Scenario) -> list[ExpertShape]:
    """8 of 128 at equal active parameters; half of them shared as nearly as steps of 64 allow."""
    active = shape_of(scenario.architecture).active_width
    width = 64 * (active // 2 // 8 // 64)
    half = ExpertShape(experts=128, experts_per_token=8, width=width, shared_width=active - 8 * width)
    return [half, _routed(128, 8, active // 8)]


# --- a lower k/n helps at a high target batch ---


def _falling_ratio(scenario: Scenario) -> list[ExpertShape]:
    """More experts of one width, 8 a token: k/n falls, active parameters stay, total ones grow."""
    width = shape_of(scenario.architecture).active_width // 8
    return [_routed(experts, 8, width) for experts in (64, 128, 256)]


def test_a_lower_k_over_n_raises_the_speedup_at_a_high_batch(setting: Scenario) -> None:
    assert _rises(_speedups(_rows(setting, _falling_ratio(setting), HIGH)))


def test_at_a_low_batch_a_lower_k_over_n_does_the_opposite(setting: Scenario) -> None:
    """The sign is one of the batch: neighbours of few experts meet more often, and reads of experts are what counts."""
    assert _rises(_speedups(_rows(setting, _falling_ratio(setting)[::-1], LOW)))


def test_the_batch_of_the_highest_speedup_rises_as_k_over_n_falls(setting: Scenario) -> None:
    """The mechanism behind both signs: a step has to touch most experts before more positions come free.

    From batch 4 on: at 1 and 2 the fixed time of a step makes every draft cheap, whatever the experts.
    """
    batches = np.array([4, 8, 16, 32, 64, 128, 256, 512])
    width = shape_of(setting.architecture).active_width // 8
    peaks = []
    for experts in (32, 128, 512):
        speedups = [row.speedup for batch in batches for row in _rows(setting, [_routed(experts, 8, width)], batch)]
        peaks.append(int(batches[np.argmax(speedups)]))
    assert _rises(peaks)


def test_but_goodput_falls_with_it_at_every_batch(setting: Scenario) -> None:
    """Where the claim ends: at equal active parameters a lower k/n reads more experts, speculating or not."""
    for batch in (LOW, 16, HIGH):
        assert _rises(_goodputs(_rows(setting, _falling_ratio(setting)[::-1], batch)))


def test_fewer_a_token_of_the_same_experts_raise_goodput_and_not_speedup(setting: Scenario) -> None:
    """The other way to a lower k/n, at equal total parameters: fewer FLOPs and reads, and less that comes free."""
    width = shape_of(setting.architecture).active_width // 8
    rows = _rows(setting, [_routed(128, per_token, width) for per_token in (8, 4, 2)], 64)
    assert np.all(np.diff(_goodputs(rows)) >= 0)
    assert _rises(_speedups(rows)[::-1])


# --- a higher ratio of routed to shared experts helps at a high target batch ---


@pytest.mark.parametrize("batch", [64, HIGH])
def test_routed_experts_raise_the_speedup_at_a_high_batch(setting: Scenario, batch: int) -> None:
    assert _rises(_speedups(_rows(setting, _half_shared_then_none(setting), batch)))


def test_but_goodput_falls_with_the_parameters_they_add(setting: Scenario) -> None:
    """Where the claim ends: at equal active parameters every routed one comes with sixteen in all."""
    for batch in (64, HIGH):
        assert _rises(_goodputs(_rows(setting, _half_shared_then_none(setting), batch))[::-1])


def test_at_equal_total_parameters_goodput_turns_to_routed_experts_beyond_batch_256() -> None:
    """Qwen3.6 with 256 experts of 512: 9 routed, or 4 and five shared. Under a percent apart from batch 128 on."""
    _, scenario = scenario_of(ScenarioRequest(model="qwen3.6-35b-a3b", gpu="h200", prices="laws"))
    shapes = [
        ExpertShape(experts=256, experts_per_token=4, width=512, shared_width=5 * 512),
        ExpertShape(experts=256, experts_per_token=9, width=512, shared_width=0),
    ]
    won = {}
    for batch in (64, 128, 256, 512):
        shared, routed = _rows(_with_every_graph(scenario), shapes, batch)
        assert routed.speedup > shared.speedup
        won[batch] = routed.goodput_tokens_per_second / shared.goodput_tokens_per_second - 1.0
    assert won[64] < -0.02
    assert abs(won[128]) < 0.01
    assert 0.0 < won[256] < won[512] < 0.03


# --- shared experts help at a low target batch ---


@pytest.mark.parametrize("batch", [1, 2])
def test_shared_experts_raise_speedup_and_goodput_at_a_low_batch(setting: Scenario, batch: int) -> None:
    shared, none = _rows(setting, _half_shared_then_none(setting), batch)
    assert shared.speedup > none.speedup
    assert shared.goodput_tokens_per_second > none.goodput_tokens_per_second


def test_but_one_small_shared_expert_does_not_earn_its_launches_at_batch_1() -> None:
    """Where the claim ends: Qwen3.6's own 8 of 256 and one shared gain more than 9 of 256, and are slower all the same.

    Measured kernels have fixed times, and a shared expert adds two of them a layer; on a datasheet they cost nothing.
    Engines that run the shared expert beside the routed ones pay less than this.
    """
    own = ExpertShape(experts=256, experts_per_token=8, width=512, shared_width=512)
    routed = ExpertShape(experts=256, experts_per_token=9, width=512, shared_width=0)
    for prices, sign in (("laws", -1), ("datasheet", 1)):
        _, scenario = scenario_of(ScenarioRequest(model="qwen3.6-35b-a3b", gpu="h200", prices=prices))
        shared, none = _rows(scenario, [own, routed], 1)
        assert shared.speedup > none.speedup
        assert np.sign(shared.goodput_tokens_per_second - none.goodput_tokens_per_second) == sign
