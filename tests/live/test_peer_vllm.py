"""The model of vLLM's adaptive verification against vLLM's own code: its manager, and its kernels run by NumPy."""

from __future__ import annotations

import contextlib
import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specmargin.policies.peer_vllm import OnlineEstimator, VllmAdaptive, log_odds
from specmargin.step import FloatArray

torch = pytest.importorskip("torch", reason="vLLM is not installed here")
verification = pytest.importorskip("vllm.v1.worker.gpu.spec_decode.adaptive_verification")
estimators = pytest.importorskip("vllm.v1.worker.gpu.spec_decode.acceptance_estimator")

DEPTH, SLOTS = 5, 12
TOKENS = SLOTS * (DEPTH + 1)


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait_stream(self, *_: Any) -> None: ...


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", _Event)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: _Event())
    monkeypatch.setattr(verification, "stream", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(verification, "_assign_draft_token_budget_compiled", verification._assign_draft_token_budget)


def _managed(verify_ms: FloatArray, draft_ms: FloatArray) -> Any:
    states = SimpleNamespace(
        num_speculative_steps=DEPTH,
        device=torch.device("cpu"),
        max_num_reqs=SLOTS,
        max_num_batched_tokens=TOKENS,
        req_id_to_index={f"r{i}": i for i in range(SLOTS)},
        num_computed_tokens_np=np.full(SLOTS, 10, dtype=np.int32),
        prefill_len=SimpleNamespace(np=np.full(SLOTS, 5, dtype=np.int32)),
    )
    locations = torch.zeros(SLOTS + 1, dtype=torch.int32)
    manager = verification.AdaptiveVerificationManager(states, locations, 1, max_total_logits=10_000)
    manager.cost_tables = (draft_ms, verify_ms)
    return manager


def test_budgets_and_splits_are_vllms_over_many_steps() -> None:
    """Sequences that stay: confidences are recorded after drafting, so that budgets are a round late."""
    generator = np.random.default_rng(2)
    for trial in range(12):
        batch = int(generator.integers(1, SLOTS + 1))
        verify = np.cumsum(generator.uniform(0.0, 0.6, TOKENS + 1)) + 3.0
        draft = np.linspace(0.5, 1.5, SLOTS + 1)
        manager = _managed(verify, draft)
        estimator = OnlineEstimator(depths=DEPTH)
        peer = VllmAdaptive(verify_seconds=verify / 1e3, draft_seconds=draft / 1e3, depth=DEPTH, estimator=estimator)
        for slot in range(batch):
            manager.add_request(slot)
        ids = [f"r{i}" for i in range(batch)]
        mapping = SimpleNamespace(num_reqs=batch, idx_mapping=torch.arange(batch))
        budgets = set()
        for step in range(8):
            survival = np.asarray(np.cumprod(generator.beta(2.0, 0.7, (batch, DEPTH)), axis=1), dtype=np.float64)
            predicted = estimator.predict(log_odds(survival))
            shown = torch.zeros(SLOTS, DEPTH)
            shown[:batch] = torch.tensor(predicted, dtype=torch.float32)
            manager.record_confidences(shown, mapping)
            drafted = np.full(batch, DEPTH)
            decision = peer.verify(peer.draft(batch), survival, drafted)
            total = manager.get_num_tokens(dict.fromkeys(ids, 1 + DEPTH), {name: [0] * DEPTH for name in ids})
            cumulative, _, _ = manager.reallocate_drafts(ids, torch.arange(batch))
            assert decision.verify_depths is not None
            assert int(decision.verify_depths.sum()) == total - batch, (trial, step)
            assert (np.diff(cumulative.numpy()) - 1).tolist() == decision.verify_depths.tolist()
            budgets.add(total - batch)
        assert len(budgets) > 1 or batch == 1


# --- the estimator's kernels, run by NumPy ---


class _Pointer:
    """Into a flat array, as Triton's kernels address it."""

    def __init__(self, array: np.ndarray, offset: Any = 0) -> None:
        self.array, self.offset = array, offset

    def __add__(self, offset: Any) -> _Pointer:
        return _Pointer(self.array, self.offset + np.asarray(offset))


class _Numpy:
    """What these kernels use of `triton.language`."""

    int64, float32 = np.int64, np.float32

    def __init__(self) -> None:
        self.program = 0

    def program_id(self, _: int) -> Any:
        return _Array(self.program)

    def arange(self, first: int, last: int) -> Any:
        return np.arange(first, last)

    def load(self, pointer: _Pointer, mask: Any = True, other: float = 0.0) -> Any:
        place = np.where(mask, pointer.offset, 0)
        return np.where(mask, pointer.array[place], other).view(_Array)

    def store(self, pointer: _Pointer, value: Any, mask: Any = True) -> None:
        place, chosen = np.broadcast_arrays(np.asarray(pointer.offset), np.asarray(mask))
        pointer.array[place[chosen]] = np.broadcast_to(np.asarray(value), place.shape)[chosen]

    def sum(self, values: Any, axis: int) -> Any:
        return np.sum(values, axis=axis)

    where, maximum = staticmethod(np.where), staticmethod(np.maximum)


class _Array(np.ndarray):
    def __new__(cls, value: Any) -> _Array:
        return np.asarray(value).view(cls)

    def to(self, kind: Any) -> _Array:
        return self.astype(kind)  # type: ignore[return-value]


class _Kernels:
    """vLLM's estimator, its state in flat arrays."""

    def __init__(self, language: _Numpy) -> None:
        self.language = language
        self.slope, self.intercepts = np.array([0.5]), np.full(DEPTH, -0.2)
        self.info, self.grad, self.counts = np.zeros(DEPTH * 3), np.zeros(DEPTH * 2), np.zeros(DEPTH)

    def step(self, odds: FloatArray, predicted: FloatArray, sampled: Any, rejected: Any) -> None:
        rows = odds.shape[0]
        for self.language.program in range(DEPTH):
            estimators._accumulate_kernel(
                *map(_Pointer, (self.info, self.grad, np.arange(rows), sampled, rejected)),
                *(_Pointer(odds.ravel()), DEPTH, _Pointer(predicted.ravel()), DEPTH, _Pointer(self.counts)),
                *(rows, 16),
            )

    def refit(self) -> None:
        kind = estimators.OnlineAcceptanceEstimator
        estimators._refit_kernel(
            *(_Pointer(self.slope), _Pointer(self.intercepts), _Pointer(self.info), 3, _Pointer(self.grad), 2),
            *(_Pointer(self.counts), DEPTH, kind.L2, kind.DAMPING_OBSERVATIONS, 8),
        )


def test_the_estimator_is_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    if not callable(estimators._refit_kernel) or hasattr(estimators._refit_kernel, "run"):
        pytest.skip("Triton is installed: its kernels are compiled, and need a GPU")
    language = _Numpy()
    monkeypatch.setattr(estimators, "tl", language)
    kind = estimators.OnlineAcceptanceEstimator
    assert (kind.REFIT_INTERVAL, estimators._INIT_SLOPE, estimators._INIT_BIAS) == (100, 0.5, -0.2)
    ours, theirs = OnlineEstimator(depths=DEPTH), _Kernels(language)
    generator = np.random.default_rng(4)
    for step in range(1, 601):
        odds = generator.normal(0.5, 2.0, (int(generator.integers(1, 9)), DEPTH))
        truth = 1.0 / (1.0 + np.exp(-(0.7 * odds + np.linspace(-0.4, 0.5, DEPTH))))
        verified = generator.integers(0, DEPTH + 1, size=(odds.shape[0],))
        accepted = np.minimum(np.cumprod(generator.random(odds.shape) < truth, axis=1).sum(axis=1), verified)
        predicted = ours.predict(odds)
        theirs.step(odds, predicted, accepted + 1, verified - accepted)
        ours.grade(odds, predicted, verified, accepted)
        if step % 100 == 0:
            theirs.refit()
            assert ours.slope == pytest.approx(theirs.slope[0], rel=1e-6)  # they read float32
            assert ours.intercepts == pytest.approx(theirs.intercepts, abs=1e-6)
    assert ours.slope == pytest.approx(0.7, abs=0.1)


def test_the_constants_are_vllms() -> None:
    peer = importlib.import_module("specmargin.policies.peer_vllm")
    kind = estimators.OnlineAcceptanceEstimator
    assert peer._MAX_LOG_ODDS == estimators._MAX_LOG_ODDS
    assert (peer._REFIT_STEPS, peer._RIDGE) == (kind.REFIT_INTERVAL, kind.L2)
    assert peer._DAMPING_OBSERVATIONS == kind.DAMPING_OBSERVATIONS
    envs = importlib.import_module("vllm.envs")
    tables = importlib.import_module("specmargin.policies.tables")
    assert tables._PROFILED_CONTEXT == envs.VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN
