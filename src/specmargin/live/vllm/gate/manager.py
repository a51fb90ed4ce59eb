"""vLLM's manager of adaptive verification with Specmargin's budget and ranking.

Two decisions per step. The budget, the number of tokens verified in the step, is taken on the host from recent rounds:
the newest confidences that the host has are two steps old. The split over sequences is taken on the GPU from the newest
ones, by vLLM's own kernel: it ranks by the running product of confidences, so it is handed those whose product is
survival over marginal price. Neither adds a synchronisation. Whatever fails here, vLLM's own decision is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager

from specmargin.acceptance.calibration import Logistic
from specmargin.live.gate_messages import GateOrder
from specmargin.live.gate_prices import GatePrices, StepDrafts
from specmargin.live.guard import Guard
from specmargin.live.settings_schema import Curve, GateKind
from specmargin.live.vllm.gate import seed
from specmargin.live.vllm.gate.profile import unpadded_dummies
from specmargin.policies.kernel.budget import LEAST_KEY

_BOUND_EVERY = 25  # steps; vLLM refits every 100


class SpecmarginVerificationManager(AdaptiveVerificationManager):
    """`kind` may be changed between steps; the same change must be made on every rank."""

    def __init__(
        self, *args: Any, kind: GateKind, curve: Curve, prices: GatePrices | None, guard: Guard, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.cost_tables: Any
        self._confidence_probs: Any
        self._batch_budget: Any
        self.kind, self.curve, self.prices, self.guard = kind, curve, prices, guard
        self.order = GateOrder()  # of the next step
        self.context: int | None = None  # tokens, of steps that are profiled; None: vLLM's
        self.estimator: Any = None  # vLLM's, if it is to be looked after
        self.calibrator: Logistic | None = None  # that it starts from
        self._steps = 0
        self.whole = False  # verify whole drafts, whoever decides
        self._tables: dict[int, tuple[Any, Any]] = {}
        states, rounds = self.req_states, 1 if prices is None else prices.tuning.recent_rounds
        self._recent = np.ones((rounds, states.max_num_reqs, states.num_speculative_steps), dtype=np.float32)
        self._newest = 0  # in `_recent`
        self._weights: torch.Tensor | None = None
        if prices is not None:
            self._weights = torch.tensor(prices.weights, dtype=torch.float32, device=self.req_states.device)

    # --- costs ---

    def batches_to_profile(self, capture_sizes: list[int], *args: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        """vLLM profiles padding, which no expert is read for; `profiled` runs random tokens instead, at the policy's
        context if there is one."""
        if self.prices is not None:
            self.guard.call("gate graphs", None, self.prices.set_graphs, capture_sizes)
        if self.curve is not Curve.PROFILED:
            yield from super().batches_to_profile(capture_sizes, *args, **kwargs)
            return
        with unpadded_dummies():
            for batch in super().batches_to_profile(capture_sizes, *args, **kwargs):
                context = batch["context_len"] if self.context is None else self.context
                yield {**batch, "randomize_inputs": True, "context_len": context}

    def set_initial_cost_curves(self, *args: Any, **kwargs: Any) -> None:
        """After the warm-up, before the first request."""
        super().set_initial_cost_curves(*args, **kwargs)
        if self.estimator is not None:
            self.guard.call("gate seed", None, self._start_estimator)

    def _start_estimator(self) -> None:
        seed.forget(self.estimator)
        seed.seed(self.estimator, self.calibrator)

    # --- requests ---

    def add_request(self, req_idx: int, *args: Any, **kwargs: Any) -> None:
        """vLLM expects that all drafts of a new request are accepted until its first confidences arrive; here it is the
        planned share of them."""
        super().add_request(req_idx, *args, **kwargs)
        if self.prices is not None:
            self._recent[:, req_idx] = self.prices.prior

    def record_confidences(self, *args: Any, **kwargs: Any) -> None:
        new = list(self._pending_resets)
        super().record_confidences(*args, **kwargs)
        self._steps += 1
        if self.estimator is not None and self._steps % _BOUND_EVERY == 0:
            self.guard.call("gate bounds", None, seed.bound, self.estimator)
        self._newest = (self._newest + 1) % len(self._recent)
        self._recent[self._newest] = self._stale_confidences[self._stale_idx].np
        if new and self.prices is not None:
            self._recent[self._newest, new] = self.prices.prior

    @property
    def _is_ours(self) -> bool:
        return self.kind in (GateKind.ON, GateKind.AUTO) and not self.guard.off

    # --- the budget, on the host ---

    def get_num_tokens(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        tokens = None
        if self.whole or self._is_ours:
            tokens = self.guard.call("gate budget", None, self._budgeted, num_tokens_per_req, draft_tokens)
        return self._native_num_tokens(num_tokens_per_req, draft_tokens) if tokens is None else tokens

    def _native_num_tokens(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        tables: Any = self.cost_tables
        if self.curve is Curve.PRICES and self.prices is not None:
            self.cost_tables = self.guard.call("gate curves", tables, self._priced_tables, len(num_tokens_per_req))
        try:
            return int(super().get_num_tokens(num_tokens_per_req, draft_tokens))
        finally:
            self.cost_tables = tables

    def _priced_tables(self, batch: int) -> tuple[Any, Any]:
        if batch not in self._tables:
            assert self.prices is not None
            limits = self.req_states.max_num_reqs, self.req_states.max_num_batched_tokens
            self._tables[batch] = self.prices.cost_tables(batch, *limits)
        return self._tables[batch]

    def _budgeted(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int | None:
        """Tokens of the step, with the budget set as vLLM's own method does; None: vLLM decides."""
        ids = list(num_tokens_per_req)
        count, states = len(ids), self.req_states
        tokens = np.fromiter(num_tokens_per_req.values(), np.int64, count)
        drafted = np.fromiter((len(draft_tokens.get(one, ())) for one in ids), np.int64, count)
        others = tokens - drafted
        most = max(0, self._max_total_logits - count * self.num_bonus_tokens)
        if self.whole or not self.order.gated:
            chosen: int | None = min(int(drafted.sum()), most)
        else:
            assert self.prices is not None
            slots = np.fromiter(map(states.req_id_to_index.__getitem__, ids), np.int64, count)
            sampling = states.num_computed_tokens_np[slots] + others >= states.prefill_len.np[slots]
            rounds = (self._newest - np.arange(self.prices.rounds_for(count))) % len(self._recent)
            step = StepDrafts(
                confidence=self._recent[rounds[:, np.newaxis], slots],
                drafted=drafted,
                other_tokens=others,
                sampling=int(np.count_nonzero(sampling)),
                most=most,
            )
            chosen = self.prices.budget(step, self.order)
        if chosen is None:
            return None
        drafts, rest = dict(zip(ids, drafted.tolist(), strict=True)), dict(zip(ids, others.tolist(), strict=True))
        self._batch_budget = (drafts, rest, chosen)
        return int(others.sum()) + chosen

    # --- the split, on the GPU ---

    def reallocate_drafts(self, req_ids: list[str], *args: Any, **kwargs: Any) -> Any:
        confidence: Any = self._confidence_probs
        if self._is_ours and self._weights is not None and self._is_cut:
            ranked = self.guard.call("gate ranking", confidence, self._ranked, self._weights, len(req_ids))
            self._confidence_probs = ranked
        try:
            return super().reallocate_drafts(req_ids, *args, **kwargs)
        finally:
            self._confidence_probs = confidence

    @property
    def _is_cut(self) -> bool:
        """Whether there is anything to rank: some drafts are verified, and some are not."""
        drafts, _, budget = self._batch_budget
        return bool(0 < budget < sum(drafts.values()))

    def _ranked(self, weights: torch.Tensor, batch: int) -> torch.Tensor:
        return ranking_confidences(self._confidence_probs, weights[min(batch, weights.shape[0] - 1)])


def ranking_confidences(confidence: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`policies.kernel.budget.ranking_confidences` on a device."""
    survival = torch.nan_to_num(confidence, nan=0.0).clamp_(0.0, 1.0).cumprod(dim=1)
    keys = survival.mul_(weights).cummin(dim=1).values.clamp_(min=LEAST_KEY)
    ranked = keys.clone()
    ranked[:, 1:].div_(keys[:, :-1])
    return ranked
