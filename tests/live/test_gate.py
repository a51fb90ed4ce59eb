"""The gate's manager and ranking, with vLLM's own classes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specmargin.live.gate_messages import GateOrder, Returned, expectation
from specmargin.live.gate_prices import gate_prices
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import Curve, GateKind
from specmargin.policies.kernel import budget as budgets
from tests.live.gate import (
    DEPTH,
    SLOTS,
    TOKENS,
    add_requests,
    admitted_drafts,
    make_manager,
    managers,
    torch,
)
from tests.unit.live import built, policy_file

inputs = pytest.importorskip("vllm.v1.worker.gpu.input_batch")

pytestmark = pytest.mark.usefixtures("no_gpu")


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
        manager = make_manager(expert=4e-4)
        confidence = generator.uniform(0.05, 1.0, (6, DEPTH)).astype(np.float32)
        tokens, drafts = add_requests(manager, 6, confidence)
        total = manager.get_num_tokens(tokens, drafts)
        budget = total - 6
        assert manager._batch_budget[2] == budget
        admitted = admitted_drafts(manager, tokens)
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
    manager = make_manager(prices=gate_prices(policy_file(), DEPTH))
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
        add_requests(manager, 6, confidence)
        manager.get_num_tokens(dict.fromkeys(ids, 1 + held), {one: [1] * held for one in ids})
        verified = np.array(admitted_drafts(manager, dict.fromkeys(ids, 0)) if held else [0] * 6)
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
    sure, hopeless = make_manager(), make_manager(per_position=1e-2)
    tokens, drafts = add_requests(sure, 4, 0.999)
    assert sure.get_num_tokens(tokens, drafts) == 4 * (1 + DEPTH)
    assert admitted_drafts(sure, tokens) == [DEPTH] * 4
    tokens, drafts = add_requests(hopeless, 4, 0.01)
    assert hopeless.get_num_tokens(tokens, drafts) == 4
    assert admitted_drafts(hopeless, tokens) == [0] * 4


def test_a_probe_is_verified_whole_within_what_one_chunk_of_logits_holds() -> None:
    manager = make_manager(per_position=1e-2)
    tokens, drafts = add_requests(manager, 4, 0.01)
    manager.order = GateOrder(gated=False)
    assert manager.get_num_tokens(tokens, drafts) == 4 * (1 + DEPTH)
    manager._max_total_logits = 10
    assert manager.get_num_tokens(tokens, drafts) == 10


def test_ranks_with_the_same_orders_decide_alike() -> None:
    generator = np.random.default_rng(11)
    ranks = [make_manager(), make_manager()]
    for _ in range(20):
        confidence = generator.uniform(0.05, 1.0, (5, DEPTH)).astype(np.float32)
        order = GateOrder(draft_factor=float(generator.uniform(0.5, 2.0)), verify_factors=(1.0, 1.3, 0.8))
        answers = []
        for rank in ranks:
            tokens, drafts = add_requests(rank, 5, confidence)
            rank.order = order
            answers.append((rank.get_num_tokens(tokens, drafts), admitted_drafts(rank, tokens)))
        assert answers[0] == answers[1]


@pytest.mark.parametrize("fault", ["budget raises", "budget too large", "ranking raises", "no number", "wrong factors"])
def test_a_fault_leaves_the_step_to_vllm_and_is_counted(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, native = make_manager(), make_manager(GateKind.NATIVE)
    native.curve = Curve.VLLM
    confidence = np.random.default_rng(1).uniform(0.2, 0.9, (5, DEPTH)).astype(np.float32)
    tokens, drafts = add_requests(manager, 5, confidence)
    add_requests(native, 5, confidence)
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
        assert admitted_drafts(manager, tokens) == [0] * 5
        return
    total = manager.get_num_tokens(tokens, drafts)
    admitted = admitted_drafts(manager, tokens)
    assert sum(admitted) == total - 5
    assert sum(manager.guard.faults.values()) == 1
    if fault != "ranking raises":
        assert total == native.get_num_tokens(tokens, drafts)


def test_five_faults_in_a_row_leave_everything_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make_manager()
    monkeypatch.setattr(manager.prices, "budget", lambda *_: 1 // 0)
    tokens, drafts = add_requests(manager, 3, 0.5)
    for _ in range(8):
        manager.get_num_tokens(tokens, drafts)
        admitted_drafts(manager, tokens)
    assert manager.guard.off
    assert manager.guard.faults["gate budget"] == 5


def test_vllms_gate_with_our_prices_is_vllms_with_other_curves() -> None:
    manager = make_manager(GateKind.NATIVE, per_position=1e-2)
    tokens, drafts = add_requests(manager, 4, 0.3)
    before = manager.cost_tables
    assert manager.get_num_tokens(tokens, drafts) == 4
    assert manager.cost_tables is before
    manager.curve = Curve.VLLM
    assert manager.get_num_tokens(tokens, drafts) > 4  # its own curve hardly rises


def test_new_requests_start_from_the_planned_acceptance() -> None:
    manager = make_manager()
    manager.add_request(2)
    assert manager._recent[:, 2] == pytest.approx(np.full((8, DEPTH), 0.7))
    batch = SimpleNamespace(num_reqs=1, idx_mapping=torch.tensor([5]))
    for _ in range(2):  # the first copy lands before the second record
        manager.record_confidences(torch.full((SLOTS, DEPTH), 0.4), batch)
    assert manager._recent[:-1, 2] == pytest.approx(np.full((7, DEPTH), 0.7), abs=0.31)
    assert manager._recent[manager._newest, 5] == pytest.approx(np.full(DEPTH, 0.4))
    assert manager._recent[(manager._newest - 1) % 8, 2] == pytest.approx(np.full(DEPTH, 0.7))


def test_an_honest_profile_runs_random_tokens_that_are_no_padding() -> None:
    manager, buffers = make_manager(GateKind.NATIVE), inputs.InputBuffers(SLOTS, TOKENS, torch.device("cpu"))
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
