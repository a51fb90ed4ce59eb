"""The gate on the device without a device: what travels, what is learned, how deep it drafts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab.live.stub_engine import ModelRunnerOutput, Request, SchedulerOutput, configuration, specmargin_scheduler

from specmargin.live.driver import Driver
from specmargin.live.gate_depth import GatedDepth
from specmargin.live.gating import ORDER, RETURNED, GateOrder, Returned, expectation
from specmargin.live.pricing import GatePrices, StepDrafts, gate_prices
from specmargin.live.sequences import StepDone
from specmargin.live.vllm import outcomes
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel import decide
from specmargin.policies.policy import NOT_DECIDED, Decision, Outcome
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.tables import study_table
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
    driver = built(tmp_path, {"mode": "adaptive"}, confidence=False, device_gate=True)
    assert driver.policy is not None
    assert driver.survivals is None
    acceptance = np.tile(np.array([[0.999] * DEPTH, [0.05] * DEPTH], dtype=np.float32), (2, 1))
    scheduled = SchedulerOutput(dict.fromkeys("abcd", DEPTH + 1), {name: [-1] * DEPTH for name in "abcd"}, DEPTH)
    for _ in range(60):
        driver.verify_whole()
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
    driver = built(tmp_path, {"mode": "adaptive"}, confidence=False, device_gate=True)
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


def test_gated_drafts_are_as_deep_as_the_look_ahead_says() -> None:
    """At large batches only a few drafts are worth verifying, so whole drafts would be shorter."""
    table = study_table(by_pass=True, max_batch=64, max_depth=DEPTH)
    sample = np.asarray(np.cumprod(np.random.default_rng(0).beta(0.6, 0.3, (256, DEPTH)), axis=1), dtype=np.float64)
    ahead = look_ahead(table, sample, early_stop=False)
    depths = {}
    for selective in (False, True):
        chosen = ControllerSettings(early_stop=False, selective=selective)
        controller = Controller(
            table=table, prior_survival=np.asarray(sample.mean(axis=0)), look_ahead=ahead, settings=chosen
        )
        depths[selective] = [controller.draft(batch).depth for batch in (1, 8, 64)]
    assert depths[True] == [ahead.depth(batch) for batch in (1, 8, 64)]
    assert depths[True] != depths[False]


def _gated_depth() -> GatedDepth:
    prices = GatePrices(
        table=study_table(by_pass=True, max_batch=64, max_depth=DEPTH), depths=DEPTH, prior=np.full(DEPTH, 0.6)
    )
    return GatedDepth(prices=prices, candidates=tuple(range(DEPTH + 1)))


def test_the_depth_for_a_gate_follows_what_it_would_verify() -> None:
    """Sure drafts are worth their passes, hopeless ones are not; a mixed batch drafts deeper than its mean says."""
    depths = {}
    generator = np.random.default_rng(0)
    half = np.where(generator.random((64, 1)) < 0.5, 0.98, 0.1) * np.ones((64, DEPTH))
    for name, acceptance in (
        ("sure", np.full((64, DEPTH), 0.98)),
        ("mixed", half),
        ("mean", np.full((64, DEPTH), half.mean())),
        ("hopeless", np.full((64, DEPTH), 0.01)),
    ):
        chooser = _gated_depth()
        learned = np.asarray(np.cumprod(np.full(DEPTH, acceptance.mean())))
        assert chooser.choose(64, 2, GateOrder, partial(np.asarray, learned)) == (2, True)  # the policy's own
        for _ in range(3):
            chooser.add(acceptance.astype(np.float32), DEPTH)
        depths[name], _ = chooser.choose(64, 2, GateOrder, partial(np.asarray, learned))
    assert depths["sure"] == DEPTH
    assert depths["hopeless"] == 0
    assert depths["mixed"] > depths["mean"]


def test_the_depth_for_a_gate_is_the_best_of_all_by_its_own_goodput() -> None:
    chooser, generator = _gated_depth(), np.random.default_rng(2)
    acceptance = generator.uniform(0.2, 1.0, (8, DEPTH)).astype(np.float32)
    chooser.add(acceptance, DEPTH)
    chosen, cut = chooser.choose(8, DEPTH, GateOrder, lambda: np.full(DEPTH, 0.5))
    assert cut
    goodput = [chooser._goodput(acceptance[np.newaxis].astype(np.float64), d, GateOrder()) for d in range(DEPTH + 1)]
    assert chosen == int(np.argmax(goodput))
    chooser.add(np.full((8, DEPTH), 0.01, dtype=np.float32), DEPTH)
    assert chooser.choose(8, DEPTH, GateOrder, lambda: np.full(DEPTH, 0.5)) == (chosen, True)  # it looks now and then


def test_hopeless_drafts_are_tried_again() -> None:
    """At depth 0 nothing comes back, so the policy's own depth is used now and then; better drafts are then noticed."""
    chooser, learned = _gated_depth(), partial(np.asarray, np.full(DEPTH, 0.5))
    chooser.add(np.full((64, DEPTH), 0.01, dtype=np.float32), DEPTH)
    own = DEPTH - 1
    chosen = [chooser.choose(64, own, GateOrder, learned)[0] for _ in range(400)]
    assert set(chosen) == {0, own}
    assert chosen[200:].count(own) == 200 // 32
    chooser.add(np.full((64, DEPTH), 0.98, dtype=np.float32), DEPTH)
    assert DEPTH in [chooser.choose(64, own, GateOrder, learned)[0] for _ in range(64)]


def test_some_drafts_are_verified_whole_where_they_fit_a_graph() -> None:
    """Six of them soon after a load is new, then one in 256 steps; never in a step without a graph."""
    learned = partial(np.asarray, np.full(DEPTH, 0.5))
    for largest, deepest in ((None, DEPTH), (64 * 3, 2), (64, 0)):
        chooser = _gated_depth()
        chooser.prices.table = chooser.prices.table.with_graphs(largest)
        chooser.add(np.full((64, DEPTH), 0.5, dtype=np.float32), DEPTH)
        decided = [chooser.choose(64, DEPTH, GateOrder, learned) for _ in range(1000)]
        whole = [(step, depth) for step, (depth, cut) in enumerate(decided) if not cut]
        assert {depth for _, depth in whole} == ({deepest} if deepest else set())
        if deepest:
            assert [step for step, _ in whole][:6] == [8, 16, 24, 32, 40, 48]
            assert len(whole) == 6 + 4


def test_a_price_that_is_too_high_does_not_keep_the_gate_from_whole_drafts(tmp_path: Path) -> None:
    """The table says that depth is expensive, but it takes no time: as in an engine whose experts are all read anyway.
    Steps that are cut would never show it."""
    driver = built(tmp_path, {"mode": "adaptive"}, confidence=False, device_gate=True)
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
        driver.verify_whole()
        depth = driver.draft_depth("abcdefgh") or 0
        order = driver.gate_order(8, depth)
        budget = prices.budget(drafts, order) or 0
        verified = np.full(8, held if not order.gated else min(held, budget // 8))
        alive = np.cumprod(generator.random(acceptance.shape) < acceptance, axis=1).sum(axis=1)
        step = StepDone.of(verified, np.minimum(alive, verified), prompt_tokens=0, seconds=0.02, depth=held)
        step.acceptance = acceptance
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
    driver = built(tmp_path, {"mode": "adaptive"}, confidence=False, device_gate=True)
    warm = set(called)
    called.clear()
    for _ in range(30):
        driver.verify_whole()
        depth = driver.draft_depth("abcd") or 0
        driver.gate_order(4, depth)
        step = StepDone.of(np.full(4, depth), np.zeros(4, dtype=np.int64), prompt_tokens=0, seconds=0.02, depth=depth)
        step.acceptance = np.full((4, DEPTH), 0.9, dtype=np.float32)
        driver.done(step, depth)
    assert "acceptance_by_handle" in called
    assert set(called) <= warm


def test_suspended_speculation_stays_suspended(tmp_path: Path) -> None:
    driver = built(tmp_path, {"mode": "adaptive"}, confidence=False, device_gate=True)
    assert driver.policy is not None
    assert driver.gated_depth is not None
    driver.gated_depth.add(np.full((4, DEPTH), 0.98, dtype=np.float32), DEPTH)
    assert driver.draft_depth("abcd") == DEPTH
    kernel = driver.policy.kernel()
    assert kernel is not None
    kernel.learned.marks[0].off_until = 1 << 40
    assert driver.draft_depth("abcd") == 0


def test_a_single_sequence_is_not_gated_in_the_workers(tmp_path: Path) -> None:
    """Its budget is chosen before its confidences are known, and no other sequence could use the rest of it."""
    driver = built(tmp_path, {"mode": "adaptive"}, confidence=False, device_gate=True)
    for ids, gated in (("a", False), ("ab", True), ("a", False), ("abcd", True)):
        driver.draft_depth(ids)
        driver.verify_whole()
        assert driver.gate_order(len(ids), DEPTH).gated is gated
    in_the_scheduler = built(tmp_path, {"mode": "adaptive"})  # there the confidences of the step itself are known
    in_the_scheduler.draft_depth("a")
    assert in_the_scheduler._pending.gated


def test_tokens_that_were_not_drafted_are_expected_as_learned() -> None:
    chooser = _gated_depth()
    noise = np.full((3, DEPTH), np.nan, dtype=np.float32)
    noise[:, :2] = 0.9
    chooser.add(noise, 2)
    rounds = chooser._recent(5, np.array([0.8, 0.7, 0.6, 0.5]))
    assert rounds.shape == (1, 5, DEPTH)
    assert rounds[0, 4].tolist() == pytest.approx([0.9, 0.9, 0.6, 0.5])


def test_a_probe_is_ordered_whole(tmp_path: Path) -> None:
    driver = built(tmp_path, {"mode": "adaptive"}, confidence=False, device_gate=True)
    for gated in (True, False):
        driver._pending = Decision(2, gated=gated)
        driver.verify_whole()
        assert driver.gate_order(4, 2).gated is gated
    # Without a look-ahead the policy cannot say when, so every step is gated.
    plain = built(tmp_path, {"mode": "adaptive"}, confidence=False, device_gate=True, gated=False)
    for _ in range(50):
        plain.verify_whole()
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
