"""The gate's manager with vLLM's own classes, on the CPU: full graphs do not exist there, so streams and events are
stand-ins, as in vLLM's own tests (`no_gpu` in conftest.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specmargin.live.gate_prices import GatePrices
from specmargin.live.guard import Guard
from specmargin.live.settings_schema import Curve, GateKind
from specmargin.policies.kernel.prices import PriceTable

torch = pytest.importorskip("torch", reason="vLLM is not installed here")
verification = pytest.importorskip("vllm.v1.worker.gpu.spec_decode.adaptive_verification")
managers = pytest.importorskip("specmargin.live.vllm.gate.manager")

DEPTH, SLOTS, TOKENS = 4, 8, 64


class Event:
    def __init__(self, **_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait_stream(self, *_: Any) -> None: ...


def price_table(per_position: float = 2e-4, expert: float = 5e-4) -> PriceTable:
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


def make_manager(kind: GateKind = GateKind.ON, prices: GatePrices | None = None, **table: float) -> Any:
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
        prices=prices or GatePrices(table=price_table(**table), depths=DEPTH, prior=np.full(DEPTH, 0.7)),
        guard=Guard(log=lambda _: None, clock=lambda: 0.0),
    )
    made.cost_tables = (np.full(SLOTS + 1, 1.0), np.linspace(5.0, 6.0, TOKENS + 1))
    return made


def add_requests(
    manager: Any, count: int, confidence: float | np.ndarray
) -> tuple[dict[str, int], dict[str, list[int]]]:
    ids = [f"r{i}" for i in range(count)]
    manager.req_states.req_id_to_index.update({one: i for i, one in enumerate(ids)})
    for slot in manager._stale_confidences:
        slot.np[:count] = confidence
    manager._recent[:, :count] = confidence
    manager._confidence_probs[:count] = torch.tensor(np.broadcast_to(confidence, (count, DEPTH)).copy())
    return dict.fromkeys(ids, 1 + DEPTH), {one: [1] * DEPTH for one in ids}


def admitted_drafts(manager: Any, tokens: dict[str, int]) -> list[int]:
    cumulative, _, _ = manager.reallocate_drafts(list(tokens), torch.arange(len(tokens)))
    return [int(logits) - 1 for logits in np.diff(cumulative.numpy())]
