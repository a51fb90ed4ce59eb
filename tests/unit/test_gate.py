"""The gate on the device without a device: what travels, what is learned, how deep it drafts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab.live.stub_engine import ModelRunnerOutput, Request, SchedulerOutput, configuration, specmargin_scheduler

from specmargin.live.driver import Driver
from specmargin.live.gate_messages import ORDER, RETURNED, GateOrder, Returned, expectation
from specmargin.live.gate_prices import StepDrafts, gate_prices
from specmargin.live.sequences import StepDone
from specmargin.live.vllm import outcomes
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel import decide
from specmargin.policies.kernel.budget import ranking_keys, token_weights
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.types import Expectation
from specmargin.policies.policy import NOT_DECIDED, Decision, Outcome
from specmargin.policies.tables import study_table
from specmargin.step import FloatArray, IntArray
from tests.unit.live import DEPTH, built, policy_file, write_policy


def test_drafts_that_the_gate_cut_were_not_verified() -> None:
    scheduled = SchedulerOutput({"a": 4, "b": 4, "c": 4}, {name: [-1, -1, -1] for name in "abc"}, 3)
    made = ModelRunnerOutput(list("cab"), {"c": 0, "a": 1, "b": 2}, [[1], [1, 2, 3], [1, 2]])
    returned = Returned(np.array([0, 3, 1], dtype=np.int32), np.full((3, 3), 0.5, dtype=np.float32))
    known = {name: SimpleNamespace(num_computed_tokens=9) for name in "abc"}
    alike = outcomes._alike(scheduled, made, returned, 3)
    by_request = outcomes._by_request(scheduled, made, known, returned, 3, with_contexts=True)
    assert alike is not None
    assert (alike.verified.tolist(), alike.accepted.tolist()) == ([0, 3, 1], [0, 2, 1])
    assert (by_request.verified.tolist(), by_request.accepted.tolist()) == ([3, 1, 0], [2, 1, 0])
    for step in (alike, by_request):
        assert step.verified_tokens == 4
        assert step.expected is not None
        assert step.expected.accepted == pytest.approx(0.5 + 0.25 + 0.125 + 0.5)
        assert step.expected.reached == pytest.approx(1.0 + 0.5 + 0.25 + 1.0)
        # Cut: all three of one draft, the last two of another.
        assert step.expected.unseen[0].tolist() == pytest.approx([1.0, 0.5 + 0.5, 0.25 + 0.25])
        assert step.expected.unseen[1].tolist() == pytest.approx([0.5, 0.25 + 0.25, 0.125 + 0.125])


def test_an_expectation_needs_a_learning_policy_and_its_own_signal() -> None:
    verified = np.array([1, 2])
    returned = Returned(verified.astype(np.int32), np.full((2, 3), np.nan, dtype=np.float32))
    assert expectation(returned, verified, verified, 0) is None
    assert expectation(returned._replace(acceptance=None), verified, verified, 3) is None
    assert expectation(returned, verified[:1], verified[:1], 3) is None
    unusable = expectation(returned, verified, verified, 3)
    assert unusable is not None
    assert unusable.accepted == 0.0
    deeper = expectation(returned._replace(acceptance=np.full((2, 9), 0.5, dtype=np.float32)), verified, verified, 3)
    assert deeper is not None
    assert deeper.unseen.shape == (2, 3)


def test_acceptance_is_learned_from_what_was_verified(tmp_path: Path) -> None:
    """Half of the drafts are hopeless and cut; the others are always accepted. Cut drafts counted as rejected would
    halve acceptance; without those that were left out it would be near one."""
    driver = built(tmp_path, {"mode": "adaptive"}, device_gate=True)
    assert driver.policy is not None
    acceptance = np.tile(np.array([[0.999] * DEPTH, [0.05] * DEPTH], dtype=np.float32), (2, 1))
    scheduled = SchedulerOutput(dict.fromkeys("abcd", DEPTH + 1), {name: [-1] * DEPTH for name in "abcd"}, DEPTH)
    for _ in range(60):
        driver.draft_depth("abcd")
        sampled = [[1] * (DEPTH + 1), [1]] * 2
        made = ModelRunnerOutput(list("abcd"), {name: i for i, name in enumerate("abcd")}, sampled)
        setattr(made, RETURNED, Returned(np.array([DEPTH, 0] * 2, dtype=np.int32), acceptance))
        step = outcomes.step_done(scheduled, made, {}, driver)
        step.seconds = 0.01
        driver.done(step, DEPTH)
    driver.settle()
    learned = driver.policy.mean_survival()
    assert driver.guard.faults.total() == 0
    assert 0.4 < learned[0] < 0.65
    assert driver.board["draft_tokens_total"] == 60 * 2 * DEPTH


def test_orders_carry_what_was_learned_and_ranks_decide_alike(tmp_path: Path) -> None:
    driver = built(tmp_path, {"mode": "adaptive"}, device_gate=True)
    assert driver.time_factors is not None
    first = driver.gate_order(4, DEPTH)
    assert first == GateOrder(True, DEPTH, 1.0, (1.0,) * (DEPTH + 1), False)
    table = policy_file().table.table
    verify = table.equal_seconds(4)
    measured = verify + 2.0 * (verify - verify[0])  # depth costs three times what the table says
    for _ in range(80):
        for depth in range(DEPTH + 1):
            driver.draft_depth("abcd")
            _observe(driver, depth, measured[depth] + table.draft_seconds[4, depth, 0])
    order = driver.gate_order(4, DEPTH)
    rise = order.verify_factors[-1] / order.verify_factors[0]
    assert rise == pytest.approx(measured[-1] / verify[-1], rel=0.1)
    ranks = [gate_prices(policy_file(), DEPTH) for _ in range(2)]
    generator = np.random.default_rng(0)
    for _ in range(20):
        drafts = StepDrafts(
            confidence=generator.uniform(0.0, 1.0, (2, 4, DEPTH)).astype(np.float32),
            drafted=np.full(4, DEPTH),
            other_tokens=np.ones(4, dtype=np.int64),
            sampling=4,
            most=100,
        )
        assert ranks[0].budget(drafts, order) == ranks[1].budget(drafts, order)


def _observe(driver: Driver, depth: int, seconds: float) -> None:
    """Four sequences verify and draft that deep; nothing is accepted."""
    depths, nothing = np.full(4, depth), np.zeros(4, dtype=np.int64)
    outcome = Outcome(decision=NOT_DECIDED, drafted=depths, verified=depths, accepted=nothing, seconds=seconds)
    assert driver.policy is not None
    assert driver.policy.observe(outcome)


def gated_controller(max_batch: int = 64, graph_positions: int | None = None) -> Controller:
    """For an engine whose workers gate drafts."""
    return Controller(
        table=study_table(by_pass=True, max_batch=max_batch, max_depth=DEPTH).with_graphs(graph_positions),
        prior_survival=np.asarray(np.cumprod(np.full(DEPTH, 0.6))),
        settings=ControllerSettings(gated_by_workers=True),
    )


def show(
    controller: Controller, acceptance: FloatArray, drafted: int = DEPTH, *, whole: bool = False, timed: bool = False
) -> None:
    """A step whose drafts have this acceptance by sequence and depth, and are accepted where that is likely. `whole`:
    all are verified. `timed`: at the price of the table, with the likely ones verified if it is not whole; otherwise
    nothing is verified."""
    batch, table = acceptance.shape[0], controller.table
    lengths, likely = np.full(batch, drafted), acceptance[:, 0] > 0.5
    verified = lengths if whole else np.where(likely & timed, lengths, 0)
    accepted = np.where(likely, verified, 0)
    back = Returned(verified.astype(np.int32), acceptance.astype(np.float32))
    seconds = table.verify_seconds(verified) + table.draft_seconds[batch, drafted, 0] if timed else math.nan
    decision = Decision(drafted, gated=True, expected=expectation(back, lengths, verified, DEPTH))
    outcome = Outcome(decision=decision, drafted=lengths, verified=verified, accepted=accepted, seconds=float(seconds))
    assert controller.observe(outcome)


def priced_goodput(table: PriceTable, acceptance: FloatArray, depth: int) -> float:
    """The most tokens per second over all budgets, in plain Python; at most 1% more for a cut draft is not worth it."""
    batch = acceptance.shape[0]
    survival = np.asarray(np.cumprod(acceptance, axis=1)[:, :depth], dtype=np.float64)
    weights = np.ones((batch, 1)) * token_weights(table, DEPTH)[batch, :depth]
    order = np.argsort(-ranking_keys(survival, weights).ravel(), kind="stable")
    goodput = []
    for budget in range(batch * depth + 1):
        depths = np.bincount(order[:budget] // depth, minlength=batch)
        tokens = batch + survival.ravel()[order[:budget]].sum()
        goodput.append(tokens / (table.verify_seconds(depths) + table.draft_seconds[batch, depth, 0]))
    return float(goodput[-1] if goodput[-1] * 1.01 >= max(goodput) else max(goodput))


def test_the_goodput_of_a_depth_is_that_of_its_best_budget() -> None:
    """Of drafts whose mean acceptance is as learned, so that nothing corrects it."""
    controller, generator = gated_controller(), np.random.default_rng(2)
    acceptance = np.where(generator.random((16, 1)) < 0.6, 0.98, 0.03) * np.ones((16, DEPTH))
    for _ in range(400):
        show(controller, acceptance)
    expected = [priced_goodput(controller.table, acceptance, depth) for depth in range(1, DEPTH + 1)]
    np.testing.assert_allclose(controller.expected_goodput(16)[1:], expected, rtol=0.02)
    chosen = [controller.draft(16).depth for _ in range(7)][-1]
    assert chosen == 1 + int(np.argmax(expected))


def test_the_depth_follows_what_the_gate_would_verify() -> None:
    """Sure drafts are worth their passes, hopeless ones are not; a mixed batch drafts deeper than its mean says."""
    generator, depths = np.random.default_rng(0), {}
    half = np.where(generator.random((64, 1)) < 0.5, 0.98, 0.1) * np.ones((64, DEPTH))
    for name, acceptance in (
        ("sure", np.full((64, DEPTH), 0.98)),
        ("mixed", half),
        ("mean", np.full((64, DEPTH), half.mean())),
        ("hopeless", np.full((64, DEPTH), 0.01)),
    ):
        controller = gated_controller()
        for _ in range(100):
            show(controller, acceptance)
        depths[name] = controller.draft(64).depth
    assert depths["sure"] == DEPTH
    assert depths["hopeless"] == 0
    assert depths["mixed"] > depths["mean"]


def test_hopeless_drafts_are_tried_again() -> None:
    """At depth 0 nothing comes back, so other depths are probed now and then; better drafts are then noticed."""
    controller = gated_controller()
    for better in (False, True):
        acceptance = np.full((64, DEPTH), 0.98 if better else 0.01)
        drafted = []
        for _ in range(2000):
            depth = controller.draft(64).depth
            drafted.append(depth)
            if depth:
                show(controller, acceptance, depth)
        assert (np.mean(np.array(drafted[500:]) == 0) > 0.9) is not better
        assert max(drafted[500:]) > 0


def test_whole_drafts_are_probed_where_they_fit_a_graph() -> None:
    """A gate that cuts would never time whole drafts; a step without a graph is never tried. The gate keeps steps in
    their graph, so drafts may be deeper than it holds for all, unless it holds no draft token."""
    generator = np.random.default_rng(0)
    acceptance = np.where(generator.random((64, 1)) < 0.4, 0.98, 0.02) * np.ones((64, DEPTH))
    for largest, deepest in ((None, DEPTH), (64 * 3, 2), (64, 0)):
        controller, whole, deep = gated_controller(graph_positions=largest), [], 0
        for _ in range(600):
            decision = controller.draft(64)
            deep = max(deep, decision.depth)
            if not decision.gated:
                whole.append(decision.depth)
            show(controller, acceptance, decision.depth, whole=not decision.gated, timed=True)
        assert deep == (DEPTH if deepest else 0)
        assert max(whole, default=0) <= deepest
        assert (len(whole) > 0) == (deepest == DEPTH)
        assert len(whole) < 30


def expected_of(acceptance: FloatArray, held: int, verified: IntArray) -> Expectation | None:
    back = Returned(verified.astype(np.int32), acceptance.astype(np.float32))
    return expectation(back, np.full(verified.size, held), verified, DEPTH)


def test_a_price_that_is_too_high_does_not_keep_the_gate_from_whole_drafts(tmp_path: Path) -> None:
    """The table says that depth is expensive, but it takes no time: as in an engine whose experts are all read anyway.
    Steps that are cut would never show it."""
    driver = built(tmp_path, {"mode": "adaptive"}, device_gate=True)
    prices = gate_prices(policy_file(), DEPTH)
    generator = np.random.default_rng(0)
    acceptance = generator.uniform(0.1, 0.6, (8, DEPTH)).astype(np.float32)
    drafts = StepDrafts(
        confidence=acceptance[np.newaxis].astype(np.float64),
        drafted=np.full(8, DEPTH),
        other_tokens=np.ones(8, dtype=np.int64),
        sampling=8,
        most=100,
    )
    before, budget, held = prices.budget(drafts, driver.gate_order(8, DEPTH)) or 0, 0, 0
    for _ in range(200):
        depth = driver.draft_depth("abcdefgh") or 0
        order = driver.gate_order(8, depth)
        budget = prices.budget(drafts, order) or 0
        verified = np.full(8, held if not order.gated else min(held, budget // 8))
        alive = np.cumprod(generator.random(acceptance.shape) < acceptance, axis=1).sum(axis=1)
        step = StepDone.of(verified, np.minimum(alive, verified), prompt_tokens=0, seconds=0.02)
        step.expected = expected_of(acceptance.astype(np.float64), held, verified)
        driver.done(step, depth)
        held = depth
    assert before < 8 * DEPTH
    assert budget == 8 * DEPTH


def test_nothing_is_compiled_after_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200 the first look of the gate at its depth took 202 ms: a function that nothing had called before."""
    called: list[str] = []

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            called.append(name)
            return function(*args)

        return call

    for name in (name for name in vars(decide) if name.endswith("_by_handle")):
        monkeypatch.setattr(decide, name, recorded(name, getattr(decide, name)))
    driver = built(tmp_path, {"mode": "adaptive"}, device_gate=True)
    warm = set(called)
    called.clear()
    for _ in range(30):
        depth = driver.draft_depth("abcd") or 0
        driver.gate_order(4, depth)
        verified = np.full(4, depth)
        step = StepDone.of(verified, np.zeros(4, dtype=np.int64), prompt_tokens=0, seconds=0.02)
        step.expected = expected_of(np.full((4, DEPTH), 0.9), depth, verified)
        driver.done(step, depth)
    assert {"draft_by_handle", "factors_by_handle", "observe_by_handle"} <= set(called)
    assert set(called) <= warm


def test_a_single_sequence_is_not_gated_in_the_workers(tmp_path: Path) -> None:
    """Its budget is chosen before its confidences are known, and no other sequence could use the rest of it."""
    driver = built(tmp_path, {"mode": "adaptive"}, device_gate=True)
    for ids, gated in (("a", False), ("ab", True), ("a", False), ("abcd", True)):
        for _ in range(2):  # decided in one step, verified in the next
            driver.draft_depth(ids)
        assert driver.gate_order(len(ids), DEPTH).gated is gated


def test_tokens_that_were_not_drafted_are_expected_as_learned() -> None:
    """Drafts of two tokens, all accepted as expected: the deeper ones follow the prior's shape, not the noise."""
    controller = gated_controller()
    noise = np.full((8, DEPTH), np.nan)
    noise[:, :2] = 0.9
    show(controller, noise, 2)
    gate = controller.kernel().learned.gate
    assert gate.drafts[gate.newest[0], 3].tolist() == pytest.approx([0.9, 0.9, -1.0, -1.0])
    controller.draft(8)
    learned = controller.mean_survival()
    conditional = learned[2] / learned[1]
    assert gate.survival[0, 3].tolist() == pytest.approx([0.9, 0.81, 0.81 * conditional, 0.81 * conditional**2])


def test_a_probe_is_ordered_whole(tmp_path: Path) -> None:
    driver = built(tmp_path, {"mode": "adaptive"}, device_gate=True)
    for gated in (True, False):
        driver._pending = Decision(2, gated=gated)
        driver.draft_depth("abcd")
        assert driver.gate_order(4, 2).gated is gated
    # A schedule cannot say when, so every step is gated.
    plain = built(tmp_path, {"mode": "schedule", "gate": "native"}, device_gate=True)
    for _ in range(50):
        plain.draft_depth("abcd")
        assert plain.gate_order(4, DEPTH).gated


def test_orders_leave_the_scheduler_with_the_step(tmp_path: Path) -> None:
    policy = write_policy(tmp_path)
    with specmargin_scheduler() as kind:
        given = {"mode": "adaptive", "policy": str(policy), "slowest_decision_seconds": 60.0, "gate": "on"}
        config = configuration(given)
        config.speculative_config.enable_adaptive_verification = True
        config.use_v2_model_runner = True
        config.parallel_config.worker_extension_cls = "specmargin"
        made = kind(vllm_config=config, depth=DEPTH)
        assert made._driver is not None
        assert made._driver.device_gate
        for i in range(4):
            made.add_request(Request(f"r{i}"))
        scheduled = made.schedule()
        order = getattr(scheduled, ORDER)
        assert isinstance(order, GateOrder)
        assert order.depth == scheduled.num_spec_tokens_to_schedule
        ids = list(scheduled.num_scheduled_tokens)
        answer = ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, [[7]] * 4)
        faults = {"gate budget": 3}
        setattr(answer, RETURNED, Returned(np.zeros(4, dtype=np.int32), None, None, faults))
        made.update_from_output(scheduled, answer)
        made._driver.settle()
        assert made._driver.guard.faults == {"gate": 3}
        config.speculative_config.enable_adaptive_verification = False
        assert not kind(vllm_config=config, depth=DEPTH)._driver.device_gate
