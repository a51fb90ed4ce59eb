"""The jobs of `rounds.py`: catalog models with dummy weights, their drafters, and the points to measure.

python -m lab.gpu.jobs FOLDER [--layers N]     writes model folders and phase-1.json, phase-2.json, …
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lab import CATALOG

MODELS = CATALOG / "models"
GIGABYTE = 10**9
# Fields that vLLM needs and the catalog omits because no price depends on them.
EXTRA_CONFIG: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "intermediate_size": 6144,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "attention_bias": False,
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "hidden_act": "silu",
        "attention_bias": False,
    },
    "qwen3.6-35b-a3b": {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "full_attention_interval": 4,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e7,
    },
}
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "attention_bias": False,
}
EXTRA_CONFIG |= {"qwen3-14b": _QWEN3, "qwen3-0.6b": _QWEN3}
EXTRA_CONFIG |= {"glm-4.7-flash": {"architectures": ["Glm4MoeLiteForCausalLM"]}}
# EAGLE-3 heads as published for these models: one Llama layer, a draft vocabulary of 32,000.
HEADS = {
    "qwen3-30b-a3b": {"hidden_size": 2048, "intermediate_size": 12288, "num_attention_heads": 32, "head_dim": 128},
    "llama-3.1-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "head_dim": 128},
}
VOCABULARY = {
    "qwen3-30b-a3b": 151_936,
    "llama-3.1-8b": 128_256,
    "qwen3.6-35b-a3b": 248_320,
    "qwen3-14b": 151_936,
    "glm-4.7-flash": 154_880,
}
DEPTHS = [0, 1, 2, 3, 5, 7]
BATCHES = [1, 4, 16, 64, 128, 256]
PROMPTS = [128, 512, 1024, 2048, 4096, 7680]  # tokens of one prompt; with 64 × 4 decoding positions within 8,192
V1_RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def model_folder(folder: Path, name: str, layers: int | None) -> str:
    config = json.loads((MODELS / f"{name}.json").read_text())["config"] | EXTRA_CONFIG[name]
    if layers is not None:
        config["num_hidden_layers"] = layers
    return _written(folder / name, config)


def head_folder(folder: Path, name: str, layers: int | None) -> str:
    target = json.loads((MODELS / f"{name}.json").read_text())["config"]
    count = layers or target["num_hidden_layers"]
    config = HEADS[name] | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_key_value_heads": 8,
        "vocab_size": target["vocab_size"],
        "draft_vocab_size": 32_000,
        "max_position_embeddings": 16_384,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [0, count // 2, count - 1],
        },
    }
    return _written(folder / f"{name}-eagle3", config)


def _written(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def speculation(folder: Path, model: str, depths: list[int], layers: int | None) -> dict[str, Any]:
    """A table with every depth, so that graphs are captured for each; the measurement sets the depth that is used.

    A single depth needs no table, and with one vLLM's V1 model runner would lose its full graphs.
    """
    deepest = max(depths)
    table = [[i, i, depth] for i, depth in enumerate(sorted(depths, reverse=True), start=1)]
    drafter = (
        {"method": "mtp"} if model not in HEADS else {"method": "eagle3", "model": head_folder(folder, model, layers)}
    )
    return drafter | {
        "num_speculative_tokens": deepest,
        **({"num_speculative_tokens_per_batch_size": table} if len(depths) > 1 else {}),
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [round(0.4**d, 4) for d in range(1, deepest + 1)],
    }


def job(
    folder: Path,
    name: str,
    model: str,
    *,
    depths: list[int],
    batches: list[int],
    kv_gigabytes: float,
    layers: int | None,
    speculative: bool = True,
    environment: dict[str, str] | None = None,
    count: bool = False,
    prompt_tokens: int = 256,
    **engine: Any,
) -> dict[str, Any]:
    sizes = sorted({b * (d + 1) for b in batches for d in depths if 0 < b * (d + 1) <= 512} | set(batches) - {0})
    arguments: dict[str, Any] = {
        "model": model_folder(folder, model, layers),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 4096,
        "max_num_seqs": max(batches),
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.05,  # only checked against free memory at start; KV is set in bytes
        "disable_log_stats": True,
        "kv_cache_memory_bytes": int(kv_gigabytes * GIGABYTE),
        "compilation_config": {"cudagraph_capture_sizes": sizes},
    } | engine
    if model == "qwen3.6-35b-a3b":
        arguments["additional_config"] = {"gdn_prefill_backend": "triton"}
    if speculative:
        arguments["speculative_config"] = speculation(folder, model, depths, layers)
    if count:
        arguments |= {"enforce_eager": True}
        del arguments["compilation_config"]
    return {
        "name": name,
        "engine": arguments,
        "speculative": speculative,
        "count": count,
        "batches": batches,
        "depths": depths if speculative else [0],
        "prompt_tokens": prompt_tokens,
        "vocabulary": VOCABULARY[model],
        "most_positions": 1024,
        "environment": environment or {},
    }


def plans(folder: Path, layers: int | None = None) -> list[dict[str, Any]]:
    """The engines of one phase start side by side and fit in 139 GiB together."""
    moe, dense, hybrid = "qwen3-30b-a3b", "llama-3.1-8b", "qwen3.6-35b-a3b"
    few = [1, 64, 256]

    def grid_job(name: str, model: str, **changes: Any) -> dict[str, Any]:
        options = {"depths": DEPTHS, "batches": BATCHES, "layers": layers} | changes
        return job(folder, name, model, **options)

    return [
        _phase(
            grid_job("moe-eagle3", moe, kv_gigabytes=14.5, prompt_tokens=128),
            grid_job("dense-eagle3", dense, kv_gigabytes=18, prompt_tokens=96),
        ),
        _phase(
            grid_job("moe-none", moe, kv_gigabytes=8, prompt_tokens=128, speculative=False),
            grid_job("moe-count", moe, kv_gigabytes=4, prompt_tokens=128, count=True, batches=[1, 4, 16, 64]),
        ),
        _phase(
            grid_job(
                "hybrid-mtp", hybrid, kv_gigabytes=24, prompt_tokens=128, depths=[0, 1, 2, 3], batches=[1, 4, 16, 64]
            ),
            grid_job(
                "dense-first-runner",
                dense,
                kv_gigabytes=13,
                prompt_tokens=64,
                depths=[3],
                batches=[1, 64, 128],
                environment=V1_RUNNER,
            ),
        ),
        _phase(
            grid_job(
                "hybrid-none", hybrid, kv_gigabytes=10, prompt_tokens=128, batches=[1, 4, 16, 64], speculative=False
            ),
            grid_job("dense-sync", dense, kv_gigabytes=15, prompt_tokens=64, batches=few, async_scheduling=False),
            grid_job("dense-none", dense, kv_gigabytes=8, prompt_tokens=96, speculative=False),
        ),
        _phase(
            grid_job(
                "dense-none-first-runner",
                dense,
                kv_gigabytes=8,
                prompt_tokens=64,
                batches=few,
                speculative=False,
                environment=V1_RUNNER,
            ),
            grid_job(
                "dense-none-sync",
                dense,
                kv_gigabytes=8,
                prompt_tokens=64,
                batches=few,
                speculative=False,
                async_scheduling=False,
            ),
            grid_job("dense-eagle3-room", dense, kv_gigabytes=45, prompt_tokens=96, batches=[64, 128, 256]),
        ),
        *_prompt_phases(folder, layers),
        *_precision_phases(folder, layers),
    ]


def _prompt_phases(folder: Path, layers: int | None) -> list[dict[str, Any]]:
    """Steps that read a prompt, alone and beside decoding sequences."""

    def prompt_job(name: str, model: str, kv_gigabytes: float, **changes: Any) -> dict[str, Any]:
        options = {"depths": [0, 3], "batches": [0, 16, 64], "layers": layers, "max_model_len": 9216} | changes
        made = job(folder, name, model, kv_gigabytes=kv_gigabytes, max_num_batched_tokens=8192, **options)
        made["engine"]["max_num_seqs"] = 128
        return made | {"prompts": PROMPTS}

    moe, dense, hybrid = "qwen3-30b-a3b", "llama-3.1-8b", "qwen3.6-35b-a3b"
    return [
        _phase(prompt_job("moe-eagle3-prompts", moe, 14), prompt_job("dense-eagle3-prompts", dense, 14)),
        _phase(prompt_job("moe-none-prompts", moe, 8, speculative=False)),
        _phase(
            prompt_job("hybrid-mtp-prompts", hybrid, 24), prompt_job("dense-none-prompts", dense, 8, speculative=False)
        ),
    ]


QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp8-dynamic": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "int4": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "lm_head": False},
}
# Experts are drawn uniformly: dummy weights would send all tokens to few. The GPU machine lacks DeepGEMM's headers.
UNIFORM = {
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_MOE_USE_DEEP_GEMM": "0",
}
GRAPH_MODES = ["", "PIECEWISE", "NONE"]
PROMPT_LENGTHS = [400, 1024]  # below and above the largest captured size


def _precision_phases(folder: Path, layers: int | None) -> list[dict[str, Any]]:
    """Plain steps of one model in several precisions; steps in every graph mode, with what they launch."""

    def moe(precision: str, **changes: Any) -> dict[str, Any]:
        plain: dict[str, Any] = {"depths": [0], "speculative": False, "layers": layers, "environment": UNIFORM}
        batches = [1, 8, 32, 64, 256]
        made = job(folder, f"moe-{precision}", "qwen3-30b-a3b", kv_gigabytes=13, batches=batches, **plain)
        made["engine"]["model"] = quantized(folder, precision, layers)
        made["engine"]["compilation_config"]["cudagraph_capture_sizes"] = [1, 8, 32, 64, 256, 512]
        return made | changes

    def dense(name: str, modes: list[str], **engine: Any) -> dict[str, Any]:
        grid: dict[str, Any] = {"batches": [1, 8, 0], "depths": [0, 3], "layers": layers, **engine}
        made = job(folder, name, "llama-3.1-8b", kv_gigabytes=8, max_num_batched_tokens=4096, **grid)
        made["engine"]["compilation_config"]["cudagraph_capture_sizes"] = [1, 4, 8, 32, 512]
        made["engine"]["max_num_seqs"] = 32
        return made | {"graph_modes": modes, "prompts": PROMPT_LENGTHS}

    in_modes = {"graph_modes": GRAPH_MODES, "prompts": PROMPT_LENGTHS, "batches": [1, 8, 32, 64, 256, 0]}
    eager = dense("dense-eager", [""], enforce_eager=True)
    del eager["engine"]["compilation_config"]
    return [
        _phase(moe("bf16", **in_modes), dense("dense-modes", GRAPH_MODES), eager),
        _phase(moe("fp8-dynamic"), moe("fp8-block"), moe("int4")),
        _phase(_draft_model(folder, layers, speculative=True), _draft_model(folder, layers, speculative=False)),
    ]


def _draft_model(folder: Path, layers: int | None, *, speculative: bool) -> dict[str, Any]:
    """Rounds of a separate draft model, five tokens deep, and plain steps of its target."""
    depths, batches = ([5], [1, 4, 16]) if speculative else ([0], [1, 8, 0])
    name = "draft-model" if speculative else "draft-none"
    plain: dict[str, Any] = {"depths": depths, "batches": batches, "layers": layers, "speculative": False}
    made = job(folder, name, "qwen3-14b", kv_gigabytes=8, max_num_batched_tokens=4096, **plain)
    made["engine"]["compilation_config"]["cudagraph_capture_sizes"] = [1, 4, 6, 8, 16, 24, 32, 96, 512]
    made["engine"]["max_num_seqs"] = 32
    if speculative:
        made["engine"]["speculative_config"] = {
            "method": "draft_model",
            "model": model_folder(folder, "qwen3-0.6b", None),
            "num_speculative_tokens": 5,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [round(0.6**d, 4) for d in range(1, 6)],
        }
    return made | {"speculative": speculative, "depths": depths, "graph_modes": [""], "prompts": PROMPT_LENGTHS}


def quantized(folder: Path, precision: str, layers: int | None, model: str = "qwen3-30b-a3b") -> str:
    path = Path(model_folder(folder, model, layers))
    config = json.loads((path / "config.json").read_text())
    if QUANTIZATIONS[precision]:
        gates = [f"model.layers.{layer}.mlp.gate" for layer in range(config["num_hidden_layers"])]
        ignored = {"ignored_layers": ["lm_head", *gates], "modules_to_not_convert": ["lm_head", *gates]}
        config["quantization_config"] = QUANTIZATIONS[precision] | ignored
    return _written(path.with_name(f"{model}-{precision}"), config)


def _phase(*jobs: dict[str, Any]) -> dict[str, Any]:
    return {"phases": [{"jobs": list(jobs), "start_seconds": 270, "measure_seconds": 150}]}


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    layers = int(arguments[arguments.index("--layers") + 1]) if "--layers" in arguments else None
    for number, plan in enumerate(plans(folder / "models", layers), start=1):
        (folder / f"phase-{number}.json").write_text(json.dumps(plan, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
