"""The gate on the device without a device: settings, when it is requested, what travels, what is learned."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.live.stub_engine import ModelRunnerOutput, Request, SchedulerOutput, configuration, specmargin_scheduler

from specmargin.acceptance.calibration import Logistic, Tokens, logit
from specmargin.errors import EngineError
from specmargin.live.driver import Driver
from specmargin.live.gate_depth import GatedDepth
from specmargin.live.gating import ORDER, RETURNED, GateOrder, Returned, expectation
from specmargin.live.policy_schema import policy_text, read_policy
from specmargin.live.pricing import GatePrices, StepDrafts, gate_prices
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import Curve, GateKind, Mode, Settings, read_settings
from specmargin.live.vllm import graphs, outcomes
from specmargin.live.vllm.gate import choice, seeding
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.policy import NOT_DECIDED, Decision, Outcome
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.tables import study_table
from tests.unit.live import DEPTH, built, policy_file, register_in


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "gate.policy.json"
    path.write_text(policy_text(policy_file()))
    return path


def settings(policy: Path | None, **given: Any) -> Settings:
    return read_settings({"mode": "adaptive", "policy": None if policy is None else str(policy)} | given, "test")


def arguments(**given: Any) -> Any:
    drafter = {"method": "eagle3", "model": "head", "num_speculative_tokens": DEPTH}
    defaults = {"speculative_config": drafter, "max_num_seqs": 8, "data_parallel_size": 1}
    return SimpleNamespace(**defaults | given)


# --- settings ---


def test_a_kind_is_enough_and_native_chooses_its_curve(policy: Path) -> None:
    assert settings(policy).gate_kind is GateKind.AUTO
    assert settings(policy, gate="off").gate_kind is GateKind.OFF
    assert settings(policy, gate="on").gate_kind is GateKind.ON
    native = settings(policy, gate="native")
    assert (native.gate_kind, native.gate_curve) == (GateKind.NATIVE, Curve.PRICES)
    observing = read_settings({"mode": "observe", "gate": "native"}, "test")
    assert (observing.gate_kind, observing.gate_curve) == (GateKind.NATIVE, Curve.PROFILED)
    assert read_settings({"mode": "observe"}, "test").gate_kind is GateKind.OFF


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gate": "maybe"}, "gate.kind"),
        ({"mode": "observe", "gate": "on"}, "needs mode adaptive"),
        ({"mode": "observe", "gate": {"kind": "native", "curve": "prices"}}, "needs 'policy'"),
        ({"mode": "observe", "gate": {"kind": "off", "curve": "profiled"}}, "kind native"),
    ],
)
def test_mistakes_in_the_setting_are_one_sentence(given: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        read_settings(given, "test")


# --- when it is requested ---


def test_the_gate_is_requested_where_it_is_expected_to_pay(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    gain = choice.expected_gain(policy, 8)
    assert gain is not None
    monkeypatch.setattr(choice, "_LEAST_GAIN", gain - 0.001)
    args = arguments()
    assert choice.add_gate(args, settings(policy, gate="auto"), log.append)
    assert args.speculative_config[graphs.FLAG] is True
    choice.remove_gate(args)
    assert graphs.FLAG not in args.speculative_config
    monkeypatch.setattr(choice, "_LEAST_GAIN", gain + 0.001)
    assert not choice.add_gate(args, settings(policy, gate="auto"), log.append)
    assert "over depth control alone" in log[-1]
    assert choice.add_gate(args, settings(policy, gate="on"), log.append)


def test_the_expected_gain_is_that_of_the_prices(policy: Path) -> None:
    """The gate's rate over the best depth by the price table itself, where it is higher; one sequence is not gated."""
    file = read_policy(policy)
    assert file.look_ahead is not None
    table, rates = file.table.table, np.array(file.look_ahead.rate_by_batch)
    committed = 1.0 + np.concatenate([[0.0], np.cumsum(file.survival)])
    whole = {batch: float((batch * committed / table.round_seconds(batch)).max()) for batch in (2, 4)}
    assert choice.expected_gain(policy, 1) == 0.0
    for lift in (0.5, 2.0):
        raised = json.loads(policy.read_text())
        raised["look_ahead"]["rate_by_batch"] = (lift * rates).tolist()
        policy.write_text(json.dumps(raised))
        gains = [max(lift * rates[batch] / whole[batch], 1.0) for batch in (2, 4)]
        assert choice.expected_gain(policy, 4) == pytest.approx(float(np.prod(gains)) ** (1 / 3) - 1.0, rel=1e-4)


def test_without_confidences_nothing_says_that_it_pays(tmp_path: Path) -> None:
    path = tmp_path / "plain.policy.json"
    log: list[str] = []
    path.write_text(policy_text(policy_file(gated=False)))
    assert not choice.add_gate(arguments(), settings(path, gate="auto"), log.append)
    assert "no calibrated confidences" in log[0]
    assert choice.add_gate(arguments(), settings(path, gate="on"), log.append)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"enforce_eager": True}, "full CUDA graphs"),
        ({"enable_lora": True}, "LoRA"),
        ({"pipeline_parallel_size": 2}, "pipeline"),
        ({"data_parallel_size": 2}, "data-parallel"),
        ({"worker_extension_cls": "mine.Extension"}, "worker extension"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "no draft logits"),
        (
            {"speculative_config": {"method": "mtp", "num-speculative-tokens": 3, "use-local-argmax-reduction": True}},
            "no draft logits",
        ),
    ],
)
def test_where_vllm_is_known_to_refuse_it_is_not_requested(policy: Path, given: dict[str, Any], says: str) -> None:
    log: list[str] = []
    args = arguments(**given)
    before = args.speculative_config
    assert not choice.add_gate(args, settings(policy, gate="on"), log.append)
    assert args.speculative_config is before
    assert says in log[0]


@pytest.mark.parametrize("chosen", [True, False])
def test_what_the_user_chose_stays(policy: Path, chosen: bool) -> None:
    args = arguments(speculative_config={"method": "mtp", "enable-adaptive-verification": chosen})
    assert not choice.add_gate(args, settings(policy, gate="on"), lambda _: None)
    assert args.speculative_config == {"method": "mtp", "enable-adaptive-verification": chosen}


@pytest.mark.parametrize(
    ("model", "full", "says"),
    [
        ({"is_hybrid": True}, True, "GatedDeltaNet"),
        ({"use_mla": True}, True, "Hopper"),
        ({}, False, "full CUDA graphs"),
        ({}, True, None),
    ],
)
def test_the_complete_configuration_may_refuse(model: dict[str, Any], full: bool, says: str | None) -> None:
    graph_mode = SimpleNamespace(has_full_cudagraphs=lambda: full)
    config = SimpleNamespace(
        model_config=SimpleNamespace(**model), compilation_config=SimpleNamespace(cudagraph_mode=graph_mode)
    )
    reason = choice.refusal_of_configuration(config, 9)
    assert (reason is None) == (says is None)
    assert says is None or (reason is not None and says in reason)
    if "use_mla" in model:
        assert choice.refusal_of_configuration(config, 10) is None


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ("nothing", [(True, True)]),
        ("gate", [(True, True), (False, True)]),
        ("both", [(True, True), (False, True), (False, False)]),
        ("model", [(True, True), (False, True)]),
    ],
)
def test_requests_that_vllm_refuses_are_taken_back_one_by_one(
    monkeypatch: pytest.MonkeyPatch, policy: Path, refused: str, expected: list[tuple[bool, bool]]
) -> None:
    seen: list[tuple[bool, bool]] = []

    class EngineArgs:
        def __init__(self) -> None:
            vars(self).update(vars(arguments(additional_config={"specmargin": {}})))

        def create_engine_config(self) -> Any:
            given = self.speculative_config  # type: ignore[attr-defined]
            seen.append((graphs.FLAG in given, graphs.TABLE in given))
            if (refused == "gate" and seen[-1][0]) or (refused == "both" and any(seen[-1])):
                raise ValueError("not supported")
            return SimpleNamespace(additional_config={"specmargin": {}})

    def request(args: Any) -> list[Any]:
        chosen = settings(policy, gate="on")
        assert choice.add_gate(args, chosen, lambda _: None)
        assert graphs.add_depth_table(args, chosen, lambda _: None)
        return [choice.remove_gate, graphs.remove_depth_table]

    register_in(monkeypatch, EngineArgs, request=request, gate_refused=lambda _: refused == "model")
    assert EngineArgs().create_engine_config() is not None
    assert seen == expected


# --- what travels, and what is learned ---


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


def test_graphs_are_requested_for_the_depths_of_the_look_ahead(policy: Path) -> None:
    file = read_policy(policy)
    assert file.look_ahead is not None
    ranges = graphs.depth_table(policy, DEPTH, 64, Mode.ADAPTIVE, gated=True)
    assert set(file.look_ahead.depth_by_batch[1:]) <= {depth for _, _, depth in ranges}


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


def test_orders_leave_the_scheduler_with_the_step(policy: Path) -> None:
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


# --- seeding ---


def test_the_seed_is_the_calibrators_where_it_has_the_same_form() -> None:
    weights = np.zeros(2 * DEPTH + 15)
    weights[:DEPTH] = [-0.1, -0.3, -0.6, -1.0]
    weights[DEPTH] = 4.0 * 0.6
    slope, intercepts = seeding.projection(Logistic(weights=weights, depths=DEPTH, rich=True), DEPTH)
    assert slope == pytest.approx(0.6, rel=1e-3)
    assert intercepts == pytest.approx([-0.1, -0.3, -0.6, -1.0], abs=5e-3)


def test_the_seed_is_near_a_calibrator_with_more_features() -> None:
    """The bundled one: at usual confidences, within 0.15 of its probability on average."""
    root = Path(choice.__file__).parents[3]
    given = json.loads((root / "catalog" / "acceptance" / "reference-moe.acceptance.json").read_text())["calibrator"]
    calibrator = Logistic(weights=np.array(given["weights"]), depths=given["depths"], rich=True)
    slope, intercepts = seeding.projection(calibrator, given["depths"])
    odds = np.linspace(-2.0, 4.0, 13)
    confidence = 1.0 / (1.0 + np.exp(-odds))
    errors = []
    for depth in range(given["depths"]):
        tokens = Tokens(
            depth=np.full(13, depth),
            confidence=confidence,
            history=np.zeros(13),
            before=odds if depth else np.zeros(13),
            accepted=np.zeros(13, dtype=np.bool_),
            round=np.zeros(13, dtype=np.int64),
        )
        exact = calibrator.probability(tokens)
        errors.append(np.abs(1.0 / (1.0 + np.exp(-(slope * odds + intercepts[depth]))) - exact).mean())
    assert np.mean(errors) < 0.15
    assert slope > 0.0
    assert np.isfinite(logit(confidence)).all()


def test_a_depth_beyond_the_calibrator_has_the_seed_of_its_last() -> None:
    weights = np.zeros(2 * DEPTH + 15)
    weights[DEPTH] = 2.0
    _, intercepts = seeding.projection(Logistic(weights=weights, depths=DEPTH, rich=True), DEPTH + 3)
    assert intercepts[DEPTH:] == pytest.approx(np.full(3, intercepts[DEPTH - 1]))
