"""In the worker of vLLM's first model runner: the drafter's confidence, for a capture; greedy drafting discards it.

Importing this module installs its hooks. The drafter's choice is unchanged: its logits are read, and the confidence is
returned with the draft tokens as one more field.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specmargin.live.hooks import around
from specmargin.live.vllm.engine_config import engine_settings
from specmargin.live.vllm.log import attempt, logger

_TAP = "_specmargin_tap"


@dataclass
class ConfidentDraftTokenIds(DraftTokenIds):
    """Draft tokens with the drafter's confidence (requests, depth)."""

    confidence: npt.NDArray[np.float32] | None = None


class ConfidenceTap:
    """Hooked into one drafter: keeps the top probability of each pass until the drafts are taken."""

    def __init__(self, drafter: Any) -> None:
        self._passes: list[torch.Tensor] = []
        self._faults = 0
        model = drafter.model
        compute = model.compute_logits

        @functools.wraps(compute)
        def compute_logits(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            if self._faults < 3 and isinstance(logits, torch.Tensor):
                self._keep(logits)
            return logits

        model.compute_logits = compute_logits

    def _keep(self, logits: torch.Tensor) -> None:
        try:
            if len(self._passes) < 64:  # dummy runs draft too, and their drafts are not taken
                self._passes.append(torch.softmax(logits, dim=-1, dtype=torch.float32).amax(dim=-1))
        except Exception as error:  # drafting must continue
            self._faults += 1
            logger.warning_once("Specmargin: the drafter's confidence cannot be read (%s).", error)

    def clear(self) -> None:
        self._passes.clear()

    def take(self, requests: int, depth: int) -> npt.NDArray[np.float32] | None:
        """(requests, depth), from one pass per token or from one pass for the whole block."""
        passes, self._passes = self._passes, []
        if not passes or depth == 0:
            return None
        if len(passes) == depth and all(one.numel() == requests for one in passes):
            return _as_array(torch.stack(passes, dim=1))
        if len(passes) == 1 and passes[0].numel() == requests * depth:
            return _as_array(passes[0].view(requests, depth))
        return None


def _as_array(confidence: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.asarray(confidence.clamp(0.0, 1.0).cpu().numpy(), dtype=np.float32)  # rounding may leave 1 + 1e-7


@around(GPUModelRunner, "execute_model")
def _tapped(execute: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    if not hasattr(runner, _TAP):
        setattr(runner, _TAP, attempt("the drafter's confidence cannot be read", None, _tap, runner))
    return execute(runner, *args, **kwargs)


@around(GPUModelRunner, "take_draft_token_ids")
def _confident(take: Any, runner: Any, *args: Any, **kwargs: Any) -> DraftTokenIds | None:
    drafts: DraftTokenIds | None = take(runner, *args, **kwargs)
    return attempt("drafts have no confidence", drafts, _with_confidence, runner, drafts)


def _tap(runner: Any) -> ConfidenceTap | None:
    """None if the drafter has no logits or rounds are not captured."""
    drafter = getattr(runner, "drafter", None)
    readable = hasattr(getattr(drafter, "model", None), "compute_logits")
    return ConfidenceTap(drafter) if readable and engine_settings(runner.vllm_config).capture else None


def _with_confidence(runner: Any, drafts: DraftTokenIds | None) -> DraftTokenIds | None:
    tap: ConfidenceTap | None = getattr(runner, _TAP, None)
    if tap is None:
        return drafts
    if drafts is None or not drafts.draft_token_ids:
        tap.clear()
        return drafts
    depth = max(map(len, drafts.draft_token_ids))
    return ConfidentDraftTokenIds(drafts.req_ids, drafts.draft_token_ids, tap.take(len(drafts.req_ids), depth))
