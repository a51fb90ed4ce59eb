"""Sends what was verified back with the output of a step of vLLM's second runner, on the stream of its other copies.

The counts are in the sampler's output already; acceptance and confidence are gathered before the next drafts overwrite
them. Copies are asynchronous and end before the event that vLLM waits for anyway: no synchronisation is added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu import async_utils, model_runner

from specmargin.live.gate_messages import RETURNED, Returned
from specmargin.live.hooks import around
from specmargin.live.vllm.log import attempt

_UNKNOWN = "what was verified is not known"
_SIGNALS = "specmargin_signals"  # attribute of vLLM's SamplerOutput


@around(model_runner.GPUModelRunner, "sample")
def sample_with_signals(sample: Any, runner: Any, hidden_states: Any, input_batch: Any, *args: Any, **kw: Any) -> Any:
    """Sampling knows the batch; the step is complete without signals."""
    outputs = sample(runner, hidden_states, input_batch, *args, **kw)
    attempt(_UNKNOWN, None, _attach_signals, runner, input_batch, outputs[0])
    return outputs


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


@around(async_utils.AsyncOutput, "__init__")
def make_with_copies(make: Any, output: Any, *args: Any, **kwargs: Any) -> None:
    """This output copies the step's results to the host."""
    make(output, *args, **kwargs)
    output.specmargin = attempt(_UNKNOWN, None, _start_copies, output, kwargs)


@around(async_utils.AsyncOutput, "get_output")
def get_with_returned(get: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
    made = get(output, *args, **kwargs)
    copies = getattr(output, "specmargin", None)
    if copies is not None:
        back = attempt(_UNKNOWN, None, returned, output.num_sampled_tokens_np, *copies)
        setattr(made, RETURNED, back)
    return made


def _start_copies(output: Any, streams: dict[str, Any]) -> tuple[Any, ...] | None:
    signals = getattr(output.sampler_output, _SIGNALS, None)
    if signals is None:
        return None
    acceptance, confidence, faults = signals
    main, copy = streams["main_stream"], streams["copy_stream"]
    with async_utils.stream(copy, main):
        copies = [None if one is None else async_utils.async_copy_to_np(one) for one in (acceptance, confidence)]
        rejected = async_utils.async_copy_to_np(output.sampler_output.num_rejected)
        output.copy_event.record(copy)  # once more, after these copies
    return rejected, *copies, faults


def returned(sampled: Any, rejected: Any, acceptance: Any, confidence: Any, faults: Any) -> Returned:
    """Drafts verified are those accepted and those rejected; a sequence that reads its prompt has none of them."""
    verified = np.maximum(sampled.astype(np.int32) - 1, 0) + rejected.astype(np.int32)
    return Returned(np.maximum(verified, 0), acceptance, confidence, faults)
