"""Sends what was verified back with the output of a step of vLLM's second runner, on the stream of its other copies.

The counts are in the sampler's output already; acceptance and confidence are gathered before the next drafts overwrite
them. Copies are asynchronous and end before the event that vLLM waits for anyway: no synchronisation is added.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from vllm.logger import init_logger
from vllm.v1.worker.gpu import async_utils

from specmargin.live.gate_messages import RETURNED, Returned

logger = init_logger("vllm.specmargin")
_SIGNALS = "specmargin_signals"  # attribute of vLLM's SamplerOutput


def install(runner_class: Any) -> None:
    """Wrap the runner's sampling, which knows the batch, and the output that copies its results to the host."""
    sample = runner_class.sample
    if hasattr(sample, "specmargin"):
        return

    @functools.wraps(sample)
    def sample_with_signals(self: Any, hidden_states: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = sample(self, hidden_states, input_batch, *args, **kwargs)
        try:
            _attach_signals(self, input_batch, outputs[0])
        except Exception as error:  # the step is complete without them
            logger.warning_once("Specmargin: what was verified is not known (%s).", error)
        return outputs

    sample_with_signals.specmargin = True  # type: ignore[attr-defined]
    runner_class.sample = sample_with_signals
    _wrap_output(async_utils.AsyncOutput)


def _attach_signals(runner: Any, input_batch: Any, sampler_output: Any) -> None:
    manager = runner.adaptive_verification
    if manager is None or input_batch.num_draft_tokens_per_req is None:
        return
    order, guard = getattr(manager, "order", None), getattr(manager, "guard", None)
    slots, confidence = input_batch.idx_mapping, None
    estimator = getattr(runner.speculator, "acceptance_estimator", None)
    if order is not None and order.confidences and estimator is not None:
        confidence = torch.sigmoid(estimator.features[slots])
    faults = None if guard is None or not guard.faults else dict(guard.faults)
    setattr(sampler_output, _SIGNALS, (manager._confidence_probs[slots], confidence, faults))


def _wrap_output(output_class: Any) -> None:
    make, get = output_class.__init__, output_class.get_output

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        try:
            signals = getattr(self.sampler_output, _SIGNALS, None)
            if signals is not None:
                self.specmargin = _start_copies(self, signals, kwargs["main_stream"], kwargs["copy_stream"])
        except Exception as error:
            logger.warning_once("Specmargin: what was verified is not known (%s).", error)

    @functools.wraps(get)
    def get_output(self: Any) -> Any:
        output = get(self)
        copies = getattr(self, "specmargin", None)
        if copies is not None:
            setattr(output, RETURNED, returned(self.num_sampled_tokens_np, *copies))
        return output

    output_class.__init__, output_class.get_output = __init__, get_output


def _start_copies(output: Any, signals: tuple[Any, Any, Any], main: Any, copy: Any) -> tuple[Any, ...]:
    acceptance, confidence, faults = signals
    with async_utils.stream(copy, main):
        copies = [None if one is None else async_utils.async_copy_to_np(one) for one in (acceptance, confidence)]
        rejected = async_utils.async_copy_to_np(output.sampler_output.num_rejected)
        output.copy_event.record(copy)  # once more, after these copies
    return rejected, *copies, faults


def returned(sampled: Any, rejected: Any, acceptance: Any, confidence: Any, faults: Any) -> Returned:
    """Drafts verified are those accepted and those rejected; a sequence that reads its prompt has none of them."""
    verified = np.maximum(sampled.astype(np.int32) - 1, 0) + rejected.astype(np.int32)
    return Returned(np.maximum(verified, 0), acceptance, confidence, faults)
