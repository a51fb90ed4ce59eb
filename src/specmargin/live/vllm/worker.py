"""In vLLM's worker: keep the drafter's confidence, which greedy drafting throws away, and count routed experts.

vLLM imports this module where the plug-in named it as the worker's extension, so an engine without us never sees it.
The drafter's choice is not touched: its logits are read after it made them, and the confidence travels with the draft
tokens as one more field.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.logger import init_logger
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specmargin.live.vllm.names import KEY, LISTENS
from specmargin.live.vllm.routing import RoutingTap

logger = init_logger("vllm.specmargin")
_TAP = "_specmargin_tap"


@dataclass
class ConfidentDraftTokenIds(DraftTokenIds):
    """The drafts, and how sure the drafter was: a row a request, a number a token; and how long reading that took."""

    confidence: npt.NDArray[np.float32] | None = None
    seconds: float = 0.0


class SpecmarginWorkerExtension:
    """Nothing to call: vLLM imports it, and with it this module."""


class ConfidenceTap:
    """Beside one drafter: the top probability of each pass, until the drafts are taken."""

    def __init__(self, drafter: Any) -> None:
        self.listening = True
        self._passes: list[torch.Tensor] = []
        self._seconds = 0.0
        self._faults = 0
        model = drafter.model
        compute = model.compute_logits

        @functools.wraps(compute)
        def compute_logits(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            if self.listening and self._faults < 3 and isinstance(logits, torch.Tensor):
                self._keep(logits)
            return logits

        model.compute_logits = compute_logits

    def _keep(self, logits: torch.Tensor) -> None:
        started = perf_counter()
        try:
            if len(self._passes) < 64:  # dummy runs draft too, and nobody takes those
                self._passes.append(torch.softmax(logits, dim=-1, dtype=torch.float32).amax(dim=-1))
                self._seconds += perf_counter() - started
        except Exception as error:  # the drafter goes on
            self._faults += 1
            logger.warning_once("Specmargin: the drafter's confidence cannot be read (%s).", error)

    def clear(self) -> None:
        self._passes.clear()
        self._seconds = 0.0

    def take(self, requests: int, depth: int) -> tuple[npt.NDArray[np.float32] | None, float]:
        """Confidences, and the seconds that reading them took."""
        started, seconds = perf_counter(), self._seconds
        passes, self._passes, self._seconds = self._passes, [], 0.0
        return self._rows(passes, requests, depth), seconds + perf_counter() - started

    @staticmethod
    def _rows(passes: list[torch.Tensor], requests: int, depth: int) -> npt.NDArray[np.float32] | None:
        """(requests, depth), from one pass a token or from one pass for the whole block."""
        if not passes or depth == 0:
            return None
        if len(passes) == depth and all(one.numel() == requests for one in passes):
            return _as_array(torch.stack(passes, dim=1))
        if len(passes) == 1 and passes[0].numel() == requests * depth:
            return _as_array(passes[0].view(requests, depth))
        return None


def _as_array(confidence: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.asarray(confidence.clamp(0.0, 1.0).cpu().numpy(), dtype=np.float32)  # rounding may leave 1 + 1e-7


def _install() -> None:
    """Once a process: taking drafts also takes their confidences."""
    take, execute = GPUModelRunner.take_draft_token_ids, GPUModelRunner.execute_model
    if hasattr(take, "specmargin"):
        return

    @functools.wraps(execute)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, _TAP):
            _tap(self)
        tap: ConfidenceTap | None = getattr(self, _TAP)
        if tap is not None and args:
            tap.listening = getattr(args[0], LISTENS, True)
        return execute(self, *args, **kwargs)

    @functools.wraps(take)
    def take_draft_token_ids(self: Any) -> DraftTokenIds | None:
        drafts = take(self)
        try:
            return _with_confidence(self, drafts)
        except Exception as error:  # the drafts are worth more than what we know of them
            logger.warning_once("Specmargin: drafts go without confidence (%s).", error)
            return drafts

    take_draft_token_ids.specmargin = True  # type: ignore[attr-defined]
    GPUModelRunner.take_draft_token_ids, GPUModelRunner.execute_model = take_draft_token_ids, execute_model
    RoutingTap.install(GPUModelRunner)


def _tap(runner: Any) -> None:
    """Before the first step; None where the drafter has no logits, or where nobody wants them."""
    found = None
    try:
        settings = runner.vllm_config.additional_config.get(KEY) or {}
        drafter = getattr(runner, "drafter", None)
        wanted = settings.get("confidence", True) and (settings.get("mode") != "schedule" or settings.get("capture"))
        if wanted and hasattr(getattr(drafter, "model", None), "compute_logits"):
            found = ConfidenceTap(drafter)
    except Exception as error:  # a drafter that nobody knew
        logger.warning_once("Specmargin: the drafter's confidence cannot be read (%s).", error)
    setattr(runner, _TAP, found)


def _with_confidence(runner: Any, drafts: DraftTokenIds | None) -> DraftTokenIds | None:
    tap: ConfidenceTap | None = getattr(runner, _TAP, None)
    if tap is None:
        return drafts
    if drafts is None or not drafts.draft_token_ids:
        tap.clear()
        return drafts
    depth = max(len(row) for row in drafts.draft_token_ids)
    return ConfidentDraftTokenIds(drafts.req_ids, drafts.draft_token_ids, *tap.take(len(drafts.req_ids), depth))


_install()
