"""Whether vLLM's adaptive verification is requested, decided before vLLM builds its configuration.

It changes the CUDA graphs and may change the attention backend, so it is requested only where the policy expects a gate
to pay over depth control alone, and not where vLLM is known to refuse it. Nothing here imports vLLM or Numba.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from specmargin.live.settings_schema import GateKind, Settings
from specmargin.live.vllm.graphs import FLAG
from specmargin.step import FloatArray

_LEAST_GAIN = 0.02  # expected goodput over depth control alone; its larger graphs and ragged steps take something too
_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix", "medusa", "extract_hidden_states")  # no draft logits
_HOPPER = 9


def add_gate(args: Any, settings: Settings, log: Callable[[str], None]) -> bool:
    """Set vLLM's flag in these `EngineArgs`, unless the user set it either way; whether it was set."""
    given = args.speculative_config
    if not isinstance(given, dict) or settings.gate_kind is GateKind.OFF or FLAG in _named(given):
        return False
    reason = refusal_of_arguments(args, _named(given)) or _not_worth_it(settings, args)
    if reason is not None:
        log(f"drafts are not gated on the GPU: {reason}")
        return False
    args.speculative_config = {**given, FLAG: True}
    return True


def remove_gate(args: Any) -> None:
    args.speculative_config = {name: value for name, value in args.speculative_config.items() if name != FLAG}


def _named(given: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in given.items()}


def refusal_of_arguments(args: Any, speculative: dict[str, Any]) -> str | None:
    """Why vLLM would refuse, as far as its arguments tell."""
    if getattr(args, "enforce_eager", False):
        return "it needs full CUDA graphs (enforce_eager is set)"
    if getattr(args, "worker_extension_cls", None):
        return "another worker extension is configured"
    if getattr(args, "enable_lora", False):
        return "vLLM does not support it with LoRA"
    if (getattr(args, "pipeline_parallel_size", None) or 1) > 1:
        return "vLLM does not support it with pipeline parallelism"
    if (getattr(args, "data_parallel_size", None) or 1) > 1:
        return "data-parallel ranks must verify alike"
    if str(speculative.get("method", "")) in _WITHOUT_MODEL:
        return f"the method {speculative['method']} has no draft logits"
    if speculative.get("use_local_argmax_reduction"):
        return "use_local_argmax_reduction leaves no draft logits"
    return None


def refusal_of_configuration(config: Any, capability: int | None) -> str | None:
    """Why vLLM would refuse, by its complete configuration. `capability`: major compute capability of the GPU."""
    model = config.model_config
    if getattr(model, "is_hybrid", False) or getattr(model, "is_attention_free", False):
        return "vLLM does not support it for models with recurrent layers (GatedDeltaNet, Mamba)"
    if getattr(model, "use_mla", False) and capability == _HOPPER:
        return "vLLM's MLA kernels on Hopper need runs of equal length"
    mode = config.compilation_config.cudagraph_mode
    if mode is None or not mode.has_full_cudagraphs():
        return "it needs full CUDA graphs"
    return None


def _not_worth_it(settings: Settings, args: Any) -> str | None:
    """None: it is asked for, or expected to pay."""
    if settings.gate_kind is not GateKind.AUTO or settings.policy is None:
        return None
    gain = expected_gain(settings.policy, getattr(args, "max_num_seqs", None))
    if gain is None:
        return "the policy has no calibrated confidences (make it with `plan --acceptance BANK --policy FILE`)"
    if gain < _LEAST_GAIN:
        return f"the policy expects {gain:+.1%} goodput over depth control alone, less than {_LEAST_GAIN:.0%}"
    return None


def expected_gain(policy: Path, max_sequences: int | None) -> float | None:
    """Goodput with the gate over the best depth by batch, as the policy expects: geometric mean over powers of two. It
    is never below that of whole drafts, which the gate may verify too, and a single sequence is not gated."""
    file = json.loads(policy.read_text(encoding="utf-8"))
    if file.get("look_ahead") is None:
        return None
    table, gated = file["table"], file["look_ahead"]["rate_by_batch"]
    committed = 1.0 + np.concatenate([[0.0], np.cumsum(file["survival"])])
    last = min(len(gated) - 1, max_sequences or len(gated) - 1)
    gains = []
    batch = 1
    while batch <= last:
        seconds = _round_seconds(table, batch)
        shared = min(seconds.size, committed.size)
        whole = float((batch * committed[:shared] / seconds[:shared]).max())
        gains.append(max(float(np.log(max(float(gated[batch]), 1e-9) / whole)), 0.0) if batch > 1 else 0.0)
        batch *= 2
    return float(np.expm1(np.mean(gains))) if gains else None


def _round_seconds(table: dict[str, Any], batch: int) -> FloatArray:
    """By depth: verifying and drafting, as `PriceTable.round_seconds`."""
    rest, draft = np.array(table["rest_by_batch_depth"][batch]), np.array(table["draft_by_batch_depth"][batch])
    experts, effective = np.array(table["expert_seconds"]), batch * np.array(table["effective_by_depth"])
    index = effective / table["expert_step"]
    low = np.minimum(index.astype(np.int64), experts.size - 2)
    return np.asarray(rest + draft + experts[low] + (index - low) * (experts[low + 1] - experts[low]))
