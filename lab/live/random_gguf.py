"""A small mixture of experts with random weights as GGUF, in a block format of llama.cpp: for timing, not for text.

    pip install gguf
    python -m lab.live.random_gguf FOLDER [Q8_0 Q4_0 ...]     writes config.json and FORMAT.gguf

Experts hold most of the bytes, so that a step takes longer the more distinct experts it reads, as in large models.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lab.live.gguf_parts import add_tokens, describe

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 64,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 128,
    "num_attention_heads": 8,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 8192,
}
_DRAFT = CONFIG | {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}


def write_models(folder: Path, formats: tuple[str, ...] = ("Q8_0", "Q4_0")) -> None:
    """The target in each format, and a dense drafter in the first."""
    for name, config in (("", CONFIG), ("draft-", _DRAFT)):
        place = folder / (name.rstrip("-") or "target")
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for number, form in enumerate(formats):
        _write(folder / f"{form}.gguf", CONFIG, form)
        if number == 0:
            _write(folder / f"draft-{form}.gguf", _DRAFT, form)


def _write(path: Path, config: dict[str, Any], form: str) -> None:
    import gguf  # noqa: PLC0415 (only where llama.cpp runs)

    kind = gguf.GGMLQuantizationType[form]
    moe = config["model_type"] == "qwen3_moe"
    writer = gguf.GGUFWriter(path, "qwen3moe" if moe else "qwen3")
    describe(writer, config, moe=moe)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{form}"])
    add_tokens(writer, config["vocab_size"], gguf.TokenType)
    for name, values in _tensors(config, moe=moe):
        if values.ndim == 1 or "ffn_gate_inp" in name:  # norms and routers stay in full precision
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(config: dict[str, Any], *, moe: bool) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    random, hidden, size = np.random.default_rng(0), config["hidden_size"], config["head_dim"]
    queries, keys = size * config["num_attention_heads"], size * config["num_key_value_heads"]
    width = config["moe_intermediate_size"] if moe else config["intermediate_size"]
    experts = (config["num_experts"],) if moe else ()

    def drawn(*shape: int) -> np.ndarray[Any, Any]:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5)

    yield "token_embd.weight", drawn(config["vocab_size"], hidden)
    yield "output_norm.weight", np.ones(hidden, dtype=np.float32)
    yield "output.weight", drawn(config["vocab_size"], hidden)
    ending = "_exps" if moe else ""
    for layer in range(config["num_hidden_layers"]):
        block = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            yield f"{block}{name}.weight", np.ones(hidden, dtype=np.float32)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield f"{block}{name}.weight", np.ones(size, dtype=np.float32)
        for name, rows in (("attn_q", queries), ("attn_k", keys), ("attn_v", keys)):
            yield f"{block}{name}.weight", drawn(rows, hidden)
        yield f"{block}attn_output.weight", drawn(hidden, queries)
        if moe:
            yield f"{block}ffn_gate_inp.weight", drawn(config["num_experts"], hidden)
        for name in ("ffn_gate", "ffn_up"):
            yield f"{block}{name}{ending}.weight", drawn(*experts, width, hidden)
        yield f"{block}ffn_down{ending}.weight", drawn(*experts, hidden, width)


if __name__ == "__main__":
    write_models(Path(sys.argv[1]), tuple(sys.argv[2:]) or ("Q8_0", "Q4_0"))
