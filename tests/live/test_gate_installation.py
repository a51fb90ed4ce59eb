"""The gate inside vLLM's second model runner: where it is installed, refused and hooked."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specmargin.live.gate_messages import RETURNED, GateOrder
from specmargin.live.hooks import around
from specmargin.live.policy_schema import policy_text
from specmargin.live.settings_schema import Curve, GateKind
from tests.live.gate import (
    DEPTH,
    SLOTS,
    TOKENS,
    Event,
    make_manager,
    managers,
    torch,
    verification,
)
from tests.unit.live import policy_file

inputs = pytest.importorskip("vllm.v1.worker.gpu.input_batch")
async_utils = pytest.importorskip("vllm.v1.worker.gpu.async_utils")
second = pytest.importorskip("vllm.v1.worker.gpu.model_runner")
installation = pytest.importorskip("specmargin.live.vllm.gate.installation")
returns = pytest.importorskip("specmargin.live.vllm.gate.returns")

pytestmark = pytest.mark.usefixtures("no_gpu")


def _kwargs(settings: dict[str, Any] | None) -> dict[str, Any]:
    states = make_manager().req_states
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
        speculative_config=SimpleNamespace(enable_adaptive_verification=True, method="eagle3"),
    )


def _refuses(**_: Any) -> Any:
    raise ValueError("the backend needs runs of equal length")


def test_where_vllm_refuses_the_server_starts_with_depth_control_only(policy: Path) -> None:
    runner, kwargs = _second_runner(), _kwargs({"mode": "adaptive", "policy": str(policy), "gate": "on"})
    assert installation._create(_refuses, runner, kwargs) is None
    flags = [owner.enable_adaptive_verification for owner in vars(runner).values()]
    assert flags == [False, False, False]
    assert runner.speculator.acceptance_estimator is None


def test_draft_models_with_flash_attention_are_not_gated(policy: Path) -> None:
    """vLLM would size their first pass by runs of equal length; with Triton's attention the size does not matter."""

    runner = _second_runner()
    runner.speculative_config.method = "draft_model"
    kwargs = _kwargs({"mode": "adaptive", "policy": str(policy), "gate": "on"})
    for backend, gated in (("FLASH_ATTN", False), ("TRITON_ATTN", True)):
        kwargs["attn_groups"] = [[SimpleNamespace(backend=SimpleNamespace(get_name=lambda backend=backend: backend))]]
        runner.speculator.enable_adaptive_verification = True
        made = installation._create(lambda **_: "vLLM's", runner, kwargs)
        assert isinstance(made, managers.SpecmarginVerificationManager) == gated
        assert runner.speculator.enable_adaptive_verification == gated
    kwargs["vllm_config"].additional_config["specmargin"]["gate"] = "off"
    kwargs["attn_groups"] = [[SimpleNamespace(backend=SimpleNamespace(get_name=lambda: "FLASH_ATTN"))]]
    assert installation._create(lambda **_: "vLLM's", runner, kwargs) == "vLLM's"  # the user's own flag


@pytest.mark.parametrize("settings", [None, {"mode": "observe"}])
def test_what_the_user_alone_asked_for_is_refused_as_ever(settings: dict[str, Any] | None) -> None:
    with pytest.raises(ValueError, match="equal length"):
        installation._create(_refuses, _second_runner(), _kwargs(settings))


def test_the_manager_is_ours_and_starts_from_the_policys_calibration(tmp_path: Path) -> None:
    policy = tmp_path / "calibrated.policy.json"
    policy.write_text(policy_text(policy_file()))
    runner, kwargs = _second_runner(), _kwargs({"mode": "adaptive", "policy": str(policy), "gate": "on"})
    made = installation._create(lambda **_: "vLLM's", runner, kwargs)
    assert isinstance(made, managers.SpecmarginVerificationManager)
    assert made.kind is GateKind.ON
    _start(made)
    estimator = runner.speculator.acceptance_estimator
    assert estimator.slope.item() == pytest.approx(1.0, rel=0.01)  # of the calibrator in this policy
    assert (estimator.counts.sum().item(), estimator._steps_since_refit) == (0.0, 0)  # the warm-up is forgotten
    assert installation._create(lambda **_: None, runner, kwargs) is None
    kwargs["vllm_config"].additional_config["specmargin"]["gate"] = "off"
    assert installation._create(lambda **_: "vLLM's", runner, kwargs) == "vLLM's"


def _start(manager: Any) -> None:
    samples = [
        async_utils.StepTimingSample(5.0 + size, 1.0, size, size, full_cudagraph=True)
        for size in (1, 2, 4)
        for _ in "ab"
    ]
    manager.set_initial_cost_curves(samples)


def test_an_estimator_that_diverged_is_brought_back() -> None:
    """vLLM's Newton steps reach −14,000 in a replay; at such intercepts nothing is verified, and nothing is learned."""
    manager, runner = make_manager(), _second_runner()
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
    assert installation._create(lambda **_: "vLLM's", _second_runner(), kwargs) == "vLLM's"


def test_vllms_own_gate_without_a_policy_is_profiled() -> None:
    made = installation._create(lambda **_: "vLLM's", _second_runner(), _kwargs({"mode": "observe", "gate": "native"}))
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
            self.adaptive_verification = make_manager()
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
    stream = Event()
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
