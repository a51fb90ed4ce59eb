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
from specmargin.live.vllm.graphs import FLAG, named

_LEAST_GAIN = 0.02  # expected goodput over depth control alone; its larger graphs and ragged steps take something too
_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix", "medusa", "extract_hidden_states")  # no draft logits
_HOPPER = 9


def wants_gate(args: Any, settings: Settings, log: Callable[[str], None]) -> bool:
    """Whether to set vLLM's flag for these `EngineArgs`: never where the user set it either way."""
    speculative = named(args.speculative_config)
    if not speculative or settings.gate_kind is GateKind.OFF or FLAG in speculative:
        return False
    reason = refusal_of_arguments(args, speculative) or _not_worth_it(settings, args)
    if reason is not None:
        log(f"drafts are not gated on the GPU: {reason}")
    return reason is None


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
    """Goodput with the gate over the best depth by batch, as the policy expects: geometric mean over powers of two, of
    which a single sequence is not gated. None: the policy does not know."""
    gate = json.loads(policy.read_text(encoding="utf-8"))["gate"]
    if gate is None:
        return None
    gains = gate["gain_by_batch"]
    last = min(len(gains) - 1, max_sequences or len(gains) - 1)
    batches = [1 << power for power in range(last.bit_length())]
    return float(np.expm1(np.mean([np.log1p(gains[batch]) for batch in batches])))
