"""What a Qwen3 or Qwen3-MoE in GGUF says about itself: shapes and a vocabulary."""

from __future__ import annotations

from typing import Any


def describe(writer: Any, config: dict[str, Any], *, moe: bool) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(4096)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if moe:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def add_tokens(writer: Any, vocabulary: int, kind: Any) -> None:
    """Words for all tokens: requests are token ids, and answers are not read."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * 256]
    more = range(len(tokens), vocabulary)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*tokens, *(f"▁w{number}" for number in more)])
    writer.add_token_scores([-float(number) for number in range(vocabulary)])
    writer.add_token_types([*kinds, *[kind.NORMAL] * len(more)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
