"""Untrained draft heads for vLLM, with valid shapes and random weights.

They show that confidences arrive and that the output does not change."""

from __future__ import annotations

import json
from pathlib import Path


def make_eagle3(target: Path, folder: Path) -> Path:
    """A random EAGLE3 head for a target, one layer."""
    import torch  # noqa: PLC0415 (only in the live environment)
    from safetensors.torch import save_file  # noqa: PLC0415

    target_config = json.loads((target / "config.json").read_text())
    hidden, heads, head_size, inner = target_config["hidden_size"], 4, 32, 128
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_size,
        "vocab_size": target_config["vocab_size"],
        "draft_vocab_size": target_config["vocab_size"],
        "max_position_embeddings": target_config["max_position_embeddings"],
        "rms_norm_eps": 1e-6,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [
                0,
                target_config["num_hidden_layers"] // 2,
                target_config["num_hidden_layers"] - 1,
            ],
        },
    }
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (target_config["vocab_size"], hidden),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (heads * head_size, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (heads * head_size, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (heads * head_size, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * head_size),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
    }
    torch.manual_seed(0)
    weights = {name: torch.ones(s) if len(s) == 1 else 0.2 * torch.randn(s) for name, s in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def make_mtp_target(folder: Path, tokenizer: Path) -> Path:
    """The shape of a small model with an MTP head (MiMo); vLLM fills it with random weights."""
    config = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "eos_token_id": 0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((tokenizer / name).read_text())
    return folder
