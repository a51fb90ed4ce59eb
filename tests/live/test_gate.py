"""The gate's manager and ranking with vLLM's own classes, on the CPU: full graphs do not exist there, so
streams and events are stand-ins, as in vLLM's own tests."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specmargin.live.gate_messages import RETURNED, GateOrder, Returned, expectation
from specmargin.live.gate_prices import GatePrices, gate_prices
from specmargin.live.guard import Guard
from specmargin.live.hooks import around
from specmargin.live.policy_schema import policy_text
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import Curve, GateKind
from specmargin.policies.kernel import budget as budgets
from specmargin.policies.kernel.prices import PriceTable
from tests.unit.live import built, policy_file

torch = pytest.importorskip("torch", reason="vLLM is not installed here")
verification = pytest.importorskip("vllm.v1.worker.gpu.spec_decode.adaptive_verification")
inputs = pytest.importorskip("vllm.v1.worker.gpu.input_batch")
async_utils = pytest.importorskip("vllm.v1.worker.gpu.async_utils")
second = pytest.importorskip("vllm.v1.worker.gpu.model_runner")
managers = pytest.importorskip("specmargin.live.vllm.gate.manager")
installing = pytest.importorskip("specmargin.live.vllm.gate.installation")
returns = pytest.importorskip("specmargin.live.vllm.gate.returns")

DEPTH, SLOTS, TOKENS = 4, 8, 64


class _Event:
    def __init__(self, **_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait_stream(self, *_: Any) -> None: ...


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: _Event())
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: _Event())
    monkeypatch.setattr(verification, "stream", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(verification, "_assign_draft_token_budget_compiled", verification._assign_draft_token_budget)
    alone = SimpleNamespace(broadcast_object=lambda curves, **_: curves)
    monkeypatch.setattr(verification, "get_tp_group", lambda: alone)


def _table(per_position: float = 2e-4, expert: float = 5e-4) -> PriceTable:
    depth = np.arange(DEPTH + 1)
    rest = 5e-3 + per_position * np.arange(SLOTS + 1)[:, np.newaxis] * (depth + 1)
    draft = np.broadcast_to(4e-4 * depth, rest.shape)
    positions = np.arange(SLOTS * (DEPTH + 1) + 1)
    return PriceTable.of(
        rest_seconds=np.asarray(rest, dtype=np.float64),
        draft_seconds=np.array(draft),
        expert_seconds=expert * positions.astype(np.float64),
        effective_by_depth=np.asarray(1.0 + 0.6 * depth, dtype=np.float64),
    )


def _manager(kind: GateKind = GateKind.ON, prices: GatePrices | None = None, **table: float) -> Any:
    states = SimpleNamespace(
        num_speculative_steps=DEPTH,
        device=torch.device("cpu"),
        max_num_reqs=SLOTS,
        max_num_batched_tokens=TOKENS,
        req_id_to_index={},
        num_computed_tokens_np=np.full(SLOTS, 10, dtype=np.int32),
        prefill_len=SimpleNamespace(np=np.full(SLOTS, 5, dtype=np.int32)),
    )
    made = managers.SpecmarginVerificationManager(
        states,
        torch.zeros(SLOTS + 1, dtype=torch.int32),
        1,
        max_total_logits=TOKENS,
        kind=kind,
        curve=Curve.PRICES,
        prices=prices or GatePrices(table=_table(**table), depths=DEPTH, prior=np.full(DEPTH, 0.7)),
        guard=Guard(log=lambda _: None, clock=lambda: 0.0),
    )
    made.cost_tables = (np.full(SLOTS + 1, 1.0), np.linspace(5.0, 6.0, TOKENS + 1))
    return made


def _add(manager: Any, count: int, confidence: float | np.ndarray) -> tuple[dict[str, int], dict[str, list[int]]]:
    ids = [f"r{i}" for i in range(count)]
    manager.req_states.req_id_to_index.update({one: i for i, one in enumerate(ids)})
    for slot in manager._stale_confidences:
        slot.np[:count] = confidence
    manager._recent[:, :count] = confidence
    manager._confidence_probs[:count] = torch.tensor(np.broadcast_to(confidence, (count, DEPTH)).copy())
    return dict.fromkeys(ids, 1 + DEPTH), {one: [1] * DEPTH for one in ids}


def _admitted(manager: Any, tokens: dict[str, int]) -> list[int]:
    cumulative, _, _ = manager.reallocate_drafts(list(tokens), torch.arange(len(tokens)))
    return [int(logits) - 1 for logits in np.diff(cumulative.numpy())]


def test_the_ranking_on_the_device_is_the_one_on_the_host() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        confidence = generator.random((6, DEPTH))
        weights = np.sort(generator.uniform(0.1, 1.0, DEPTH))
        host = budgets.ranking_confidences(confidence, weights)
        device = managers.ranking_confidences(torch.tensor(confidence), torch.tensor(weights)).numpy()
        np.testing.assert_allclose(device, host, rtol=1e-9)
        keys = np.cumprod(device, axis=1)
        assert (np.diff(keys, axis=1) <= 1e-12).all()


def test_the_split_is_that_of_the_ragged_order_and_has_the_size_of_the_budget() -> None:
    generator = np.random.default_rng(5)
    for trial in range(30):
        manager = _manager(expert=4e-4)
        confidence = generator.uniform(0.05, 1.0, (6, DEPTH)).astype(np.float32)
        tokens, drafts = _add(manager, 6, confidence)
        total = manager.get_num_tokens(tokens, drafts)
        budget = total - 6
        assert manager._batch_budget[2] == budget
        admitted = _admitted(manager, tokens)
        assert sum(admitted) == budget, trial
        weights = manager.prices.weights[6]
        survival = np.asarray(np.cumprod(confidence, axis=1, dtype=np.float64))
        keys = budgets.ranking_keys(survival, weights)
        best = np.argsort(-keys, axis=None, kind="stable")[:budget]
        expected = np.bincount(best // DEPTH, minlength=6)
        assert admitted == expected.tolist(), trial
        assert manager.guard.faults == {}


def test_the_whole_loop_gates_and_learns(tmp_path: Path) -> None:
    """Depths and orders from the driver, budgets and splits from vLLM's manager with Specmargin's prices, and what was
    verified back to the driver, learned as async scheduling tells it: a step late. Half of the sequences are accepted
    whole, the others not at all, and confidences say so."""
    driver = built(tmp_path, {"mode": "adaptive"}, device_gate=True)
    manager = _manager(prices=gate_prices(policy_file(), DEPTH))
    ids, held, verified_by_kind = [f"r{i}" for i in range(6)], 0, np.zeros(2)
    late: tuple[StepDone, int] | None = None
    confidence = np.array([[0.99] * DEPTH, [0.02] * DEPTH] * 3, dtype=np.float32)
    policy = driver.policy
    assert policy is not None
    kernel = policy.kernel()
    assert kernel is not None
    table = kernel.rules.table
    for step in range(120):
        depth = driver.draft_depth(ids) or 0
        manager.order = driver.gate_order(6, depth)
        _add(manager, 6, confidence)
        manager.get_num_tokens(dict.fromkeys(ids, 1 + held), {one: [1] * held for one in ids})
        verified = np.array(_admitted(manager, dict.fromkeys(ids, 0)) if held else [0] * 6)
        accepted = np.where(np.arange(6) % 2 == 0, verified, 0)
        if step >= 60:
            verified_by_kind += verified[0::2].sum(), verified[1::2].sum()
        seconds = table.verify_seconds(verified) + table.draft_seconds[6, depth, 0]
        done = StepDone.of(verified, accepted, prompt_tokens=0, seconds=float(seconds))
        back = Returned(verified.astype(np.int32), confidence if held else None)
        done.expected = expectation(back, np.full(6, held), verified, driver.learned_depth)
        if late is not None:
            driver.done(*late)
        late, held = (done, depth), depth
    assert driver.guard.faults.total() == manager.guard.faults.total() == 0
    assert held == DEPTH
    assert verified_by_kind[0] > 0.95 * 60 * 3 * DEPTH
    assert verified_by_kind[1] < 0.2 * verified_by_kind[0]
    assert policy.mean_survival()[0] == pytest.approx(0.5, abs=0.05)


def test_sure_drafts_are_verified_whole_and_hopeless_ones_not_at_all() -> None:
    sure, hopeless = _manager(), _manager(per_position=1e-2)
    tokens, drafts = _add(sure, 4, 0.999)
    assert sure.get_num_tokens(tokens, drafts) == 4 * (1 + DEPTH)
    assert _admitted(sure, tokens) == [DEPTH] * 4
    tokens, drafts = _add(hopeless, 4, 0.01)
    assert hopeless.get_num_tokens(tokens, drafts) == 4
    assert _admitted(hopeless, tokens) == [0] * 4


def test_a_probe_is_verified_whole_within_what_one_chunk_of_logits_holds() -> None:
    manager = _manager(per_position=1e-2)
    tokens, drafts = _add(manager, 4, 0.01)
    manager.order = GateOrder(gated=False)
    assert manager.get_num_tokens(tokens, drafts) == 4 * (1 + DEPTH)
    manager._max_total_logits = 10
    assert manager.get_num_tokens(tokens, drafts) == 10


def test_ranks_with_the_same_orders_decide_alike() -> None:
    generator = np.random.default_rng(11)
    ranks = [_manager(), _manager()]
    for _ in range(20):
        confidence = generator.uniform(0.05, 1.0, (5, DEPTH)).astype(np.float32)
        order = GateOrder(draft_factor=float(generator.uniform(0.5, 2.0)), verify_factors=(1.0, 1.3, 0.8))
        answers = []
        for rank in ranks:
            tokens, drafts = _add(rank, 5, confidence)
            rank.order = order
            answers.append((rank.get_num_tokens(tokens, drafts), _admitted(rank, tokens)))
        assert answers[0] == answers[1]


@pytest.mark.parametrize("fault", ["budget raises", "budget too large", "ranking raises", "no number", "wrong factors"])
def test_a_fault_leaves_the_step_to_vllm_and_is_counted(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, native = _manager(), _manager(GateKind.NATIVE)
    native.curve = Curve.VLLM
    confidence = np.random.default_rng(1).uniform(0.2, 0.9, (5, DEPTH)).astype(np.float32)
    tokens, drafts = _add(manager, 5, confidence)
    _add(native, 5, confidence)
    manager.curve = Curve.VLLM
    if fault == "budget raises":
        monkeypatch.setattr(manager.prices, "budget", lambda *_: 1 // 0)
    if fault == "budget too large":
        monkeypatch.setattr("specmargin.live.gate_prices.best_budget", lambda *_: (10_000, 1.0, 1.0))
    if fault == "ranking raises":
        monkeypatch.setattr(managers, "ranking_confidences", lambda *_: 1 // 0)
    if fault == "wrong factors":
        manager.order = GateOrder(draft_factor=float("nan"))
    if fault == "no number":
        manager._recent[:, :5] = np.nan
        manager._confidence_probs[:5] = float("nan")
        assert manager.get_num_tokens(tokens, drafts) == 5  # nothing is known to survive
        assert _admitted(manager, tokens) == [0] * 5
        return
    total = manager.get_num_tokens(tokens, drafts)
    admitted = _admitted(manager, tokens)
    assert sum(admitted) == total - 5
    assert sum(manager.guard.faults.values()) == 1
    if fault != "ranking raises":
        assert total == native.get_num_tokens(tokens, drafts)


def test_five_faults_in_a_row_leave_everything_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = _manager()
    monkeypatch.setattr(manager.prices, "budget", lambda *_: 1 // 0)
    tokens, drafts = _add(manager, 3, 0.5)
    for _ in range(8):
        manager.get_num_tokens(tokens, drafts)
        _admitted(manager, tokens)
    assert manager.guard.off
    assert manager.guard.faults["gate budget"] == 5


def test_vllms_gate_with_our_prices_is_vllms_with_other_curves() -> None:
    manager = _manager(GateKind.NATIVE, per_position=1e-2)
    tokens, drafts = _add(manager, 4, 0.3)
    before = manager.cost_tables
    assert manager.get_num_tokens(tokens, drafts) == 4
    assert manager.cost_tables is before
    manager.curve = Curve.VLLM
    assert manager.get_num_tokens(tokens, drafts) > 4  # its own curve hardly rises


def test_new_requests_start_from_the_planned_acceptance() -> None:
    manager = _manager()
    manager.add_request(2)
    assert manager._recent[:, 2] == pytest.approx(np.full((8, DEPTH), 0.7))
    batch = SimpleNamespace(num_reqs=1, idx_mapping=torch.tensor([5]))
    for _ in range(2):  # the first copy lands before the second record
        manager.record_confidences(torch.full((SLOTS, DEPTH), 0.4), batch)
    assert manager._recent[:-1, 2] == pytest.approx(np.full((7, DEPTH), 0.7), abs=0.31)
    assert manager._recent[manager._newest, 5] == pytest.approx(np.full(DEPTH, 0.4))
    assert manager._recent[(manager._newest - 1) % 8, 2] == pytest.approx(np.full(DEPTH, 0.7))


def test_an_honest_profile_runs_random_tokens_that_are_no_padding() -> None:
    manager, buffers = _manager(GateKind.NATIVE), inputs.InputBuffers(SLOTS, TOKENS, torch.device("cpu"))
    manager.curve = Curve.PROFILED
    seen = []
    for batch in manager.batches_to_profile([4, 8]):
        made = inputs.InputBatch.make_dummy(2, batch["num_tokens"], buffers, is_padding=True)
        seen.append((batch["num_tokens"], batch["randomize_inputs"], bool(made.is_padding.any())))
    assert {number for number, _, _ in seen} >= {4, 8}
    assert all(random and not padding for _, random, padding in seen)
    assert inputs.InputBatch.make_dummy(2, 4, buffers).is_padding.all()
    manager.context = 321
    assert {batch["context_len"] for batch in manager.batches_to_profile([4])} == {321}
    manager.curve = Curve.VLLM
    assert all("randomize_inputs" not in batch for batch in manager.batches_to_profile([4, 8]))


# --- installed in vLLM's second runner ---


def _kwargs(settings: dict[str, Any] | None) -> dict[str, Any]:
    states = _manager().req_states
    additional = {} if settings is None else {"specmargin": settings}
    return {
        "enable_adaptive_verification": True,
        "req_states": states,
        "query_start_loc": torch.zeros(SLOTS + 1, dtype=torch.int32),
        "num_bonus_tokens": 1,
        "max_total_logits": TOKENS,
        "vllm_config": SimpleNamespace(additional_config=additional),
    }


def _second_runner() -> Any:
    estimator = SimpleNamespace(
        num_speculative_steps=DEPTH,
        slope=torch.tensor([0.5]),
        intercepts=torch.full((DEPTH,), -0.2),
        info=torch.ones(DEPTH, 3),
        grad=torch.ones(DEPTH, 2),
        counts=torch.ones(DEPTH),
        _steps_since_refit=7,
    )
    return SimpleNamespace(
        speculator=SimpleNamespace(
            enable_adaptive_verification=True, use_acceptance_estimator=True, acceptance_estimator=estimator
        ),
        rejection_sampler=SimpleNamespace(enable_adaptive_verification=True),
        speculative_config=SimpleNamespace(enable_adaptive_verification=True),
    )


def _refuses(**_: Any) -> Any:
    raise ValueError("the backend needs runs of equal length")


def test_where_vllm_refuses_the_server_starts_with_depth_control_only(policy: Path) -> None:
    runner, kwargs = _second_runner(), _kwargs({"mode": "adaptive", "policy": str(policy), "gate": "on"})
    assert installing._create(_refuses, runner, kwargs) is None
    flags = [owner.enable_adaptive_verification for owner in vars(runner).values()]
    assert flags == [False, False, False]
    assert runner.speculator.acceptance_estimator is None


def test_draft_models_with_flash_attention_are_not_gated(policy: Path) -> None:
    """vLLM would size their first pass by runs of equal length; with Triton's attention the size does not matter."""

    class StandaloneARSpeculator(SimpleNamespace):
        pass

    runner = _second_runner()
    runner.speculator = StandaloneARSpeculator(**vars(runner.speculator))
    kwargs = _kwargs({"mode": "adaptive", "policy": str(policy), "gate": "on"})
    for backend, gated in (("FLASH_ATTN", False), ("TRITON_ATTN", True)):
        kwargs["attn_groups"] = [[SimpleNamespace(backend=SimpleNamespace(get_name=lambda backend=backend: backend))]]
        runner.speculator.enable_adaptive_verification = True
        made = installing._create(lambda **_: "vLLM's", runner, kwargs)
        assert isinstance(made, managers.SpecmarginVerificationManager) == gated
        assert runner.speculator.enable_adaptive_verification == gated
    kwargs["vllm_config"].additional_config["specmargin"]["gate"] = "off"
    kwargs["attn_groups"] = [[SimpleNamespace(backend=SimpleNamespace(get_name=lambda: "FLASH_ATTN"))]]
    assert installing._create(lambda **_: "vLLM's", runner, kwargs) == "vLLM's"  # the user's own flag


@pytest.mark.parametrize("settings", [None, {"mode": "observe"}])
def test_what_the_user_alone_asked_for_is_refused_as_ever(settings: dict[str, Any] | None) -> None:
    with pytest.raises(ValueError, match="equal length"):
        installing._create(_refuses, _second_runner(), _kwargs(settings))


def test_the_manager_is_ours_and_starts_from_the_policys_calibration(tmp_path: Path) -> None:
    policy = tmp_path / "calibrated.policy.json"
    policy.write_text(policy_text(policy_file()))
    runner, kwargs = _second_runner(), _kwargs({"mode": "adaptive", "policy": str(policy), "gate": "on"})
    made = installing._create(lambda **_: "vLLM's", runner, kwargs)
    assert isinstance(made, managers.SpecmarginVerificationManager)
    assert made.kind is GateKind.ON
    _start(made)
    estimator = runner.speculator.acceptance_estimator
    assert estimator.slope.item() == pytest.approx(1.0, rel=0.01)  # of the calibrator in this policy
    assert (estimator.counts.sum().item(), estimator._steps_since_refit) == (0.0, 0)  # the warm-up is forgotten
    assert installing._create(lambda **_: None, runner, kwargs) is None
    kwargs["vllm_config"].additional_config["specmargin"]["gate"] = "off"
    assert installing._create(lambda **_: "vLLM's", runner, kwargs) == "vLLM's"


def _start(manager: Any) -> None:
    samples = [
        async_utils.StepTimingSample(5.0 + size, 1.0, size, size, full_cudagraph=True)
        for size in (1, 2, 4)
        for _ in "ab"
    ]
    manager.set_initial_cost_curves(samples)


def test_an_estimator_that_diverged_is_brought_back() -> None:
    """vLLM's Newton steps reach −14,000 in a replay; at such intercepts nothing is verified, and nothing is learned."""
    manager, runner = _manager(), _second_runner()
    manager.estimator = runner.speculator.acceptance_estimator
    manager.estimator.slope.fill_(1e6)
    manager.estimator.intercepts.fill_(-14_000.0)
    batch = SimpleNamespace(num_reqs=1, idx_mapping=torch.tensor([5]))
    for _ in range(25):
        manager.record_confidences(torch.full((SLOTS, DEPTH), 0.4), batch)
    assert manager.estimator.slope.item() == 4.0
    assert manager.estimator.intercepts.tolist() == [-5.0] * DEPTH
    assert manager.guard.faults == {}


def test_a_manager_that_cannot_be_made_leaves_vllms(tmp_path: Path) -> None:
    kwargs = _kwargs({"mode": "adaptive", "policy": str(tmp_path / "gone.policy.json"), "gate": "on"})
    assert installing._create(lambda **_: "vLLM's", _second_runner(), kwargs) == "vLLM's"


def test_vllms_own_gate_without_a_policy_is_profiled() -> None:
    made = installing._create(lambda **_: "vLLM's", _second_runner(), _kwargs({"mode": "observe", "gate": "native"}))
    assert (made.kind, made.curve, made.prices) == (GateKind.NATIVE, Curve.PROFILED, None)


def test_the_hooks_fit_this_vllm() -> None:
    """The names and arguments that are overridden or relied on."""
    runner = inspect.signature(second.GPUModelRunner.sample)
    assert list(runner.parameters)[:3] == ["self", "hidden_states", "input_batch"]
    output = inspect.signature(async_utils.AsyncOutput.__init__)
    assert {"sampler_output", "main_stream", "copy_stream"} <= set(output.parameters)
    create = inspect.signature(verification.maybe_create_adaptive_verification_manager)
    assert {"req_states", "query_start_loc", "num_bonus_tokens", "max_total_logits"} <= set(create.parameters)
    assert "randomize_inputs" in inspect.signature(second.GPUModelRunner._dummy_run).parameters
    assert "is_padding" in inspect.signature(inputs.InputBatch.make_dummy).parameters
    called = inspect.getsource(second.GPUModelRunner)
    for line in (
        "maybe_create_adaptive_verification_manager(",
        "self.adaptive_verification.get_num_tokens(",
        "adaptive_verification.reallocate_drafts(req_ids, idx_mapping)",
        "async_output = AsyncOutput(",
        "self._dummy_run(**batch)",
    ):
        assert line in called


def test_the_hooks_are_installed_with_the_worker_extension() -> None:
    importlib.import_module("specmargin.live.vllm.worker")
    hooked = {
        second: ["maybe_create_adaptive_verification_manager"],
        second.GPUModelRunner: ["initialize_kv_cache", "execute_model", "sample", "capture_model"],
        async_utils.AsyncOutput: ["__init__", "get_output"],
    }
    for owner, names in hooked.items():
        for name in names:
            assert len(getattr(owner, name).specmargin_hooks) == 1, name


def test_what_was_verified_comes_back_with_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_utils, "stream", lambda *_: contextlib.nullcontext())

    class Runner:
        def __init__(self) -> None:
            self.adaptive_verification = _manager()
            self.adaptive_verification._confidence_probs[:] = torch.arange(SLOTS * DEPTH).view(SLOTS, DEPTH) / 100.0
            features = torch.zeros(SLOTS, DEPTH)
            self.speculator = SimpleNamespace(acceptance_estimator=SimpleNamespace(features=features))

        def sample(self, *_: Any) -> Any:
            sampled = torch.tensor([3, 1, 0], dtype=torch.int32)
            rejected = torch.tensor([1, 2, 0], dtype=torch.int32)
            output = async_utils.SamplerOutput(torch.zeros(3, DEPTH + 1), None, None, sampled, rejected)
            return output, sampled, rejected

    around(Runner, "sample")(returns.sample_with_signals)
    runner = Runner()
    runner.adaptive_verification.order = GateOrder(confidences=True)
    runner.adaptive_verification.guard.faults["gate budget"] = 2
    batch = SimpleNamespace(idx_mapping=torch.tensor([4, 0, 2]), num_draft_tokens_per_req=np.full(3, DEPTH))
    sampler_output, sampled, _ = runner.sample(None, batch, None)
    stream = _Event()
    async_output = async_utils.AsyncOutput(
        model_runner_output=SimpleNamespace(
            req_ids=["a", "b", "c"], prompt_logprobs_dict={}, prompt_token_id_logprobs_dict={}
        ),
        sampler_output=sampler_output,
        num_sampled_tokens=sampled,
        main_stream=stream,
        copy_stream=stream,
        check_ep_fault=False,
        pending_aux_output=None,
    )
    back = getattr(async_output.get_output(), RETURNED)
    assert back.verified.tolist() == [3, 2, 0]
    assert back.acceptance == pytest.approx(runner.adaptive_verification._confidence_probs[[4, 0, 2]].numpy())
    assert back.confidence == pytest.approx(np.full((3, DEPTH), 0.5))
    assert back.faults == {"gate budget": 2}
    # A step without drafts sends nothing back.
    batch.num_draft_tokens_per_req = None
    assert not hasattr(runner.sample(None, batch, None)[0], "specmargin_signals")
