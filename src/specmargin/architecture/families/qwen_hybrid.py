"""Qwen3-Next, 3.5 and 3.6: three GatedDeltaNet layers to each full-attention layer, dense or MoE."""

from __future__ import annotations

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import (
    MTP_MODULE,
    LayerBuilder,
    Mixer,
    Reading,
    decoder,
    mtp_layers,
    plain_attention,
    pool,
)
from specmargin.architecture.families.dense import every_nth
from specmargin.architecture.precision import precision_of_dtype
from specmargin.architecture.types import Architecture, ExpertBlock, Layer, LinearAttention


def qwen3_next(reading: Reading) -> Architecture:
    """Its checkpoints have an MTP layer that the configuration does not mention."""
    return _hybrid(reading, draft_layers=1)


def qwen3_5(reading: Reading) -> Architecture:
    return _hybrid(reading, draft_layers=mtp_layers(reading.config, "mtp_num_hidden_layers"))


def _hybrid(reading: Reading, *, draft_layers: int) -> Architecture:
    config = reading.config
    layers = config.layer_count()
    default = every_nth(config.positive("full_attention_interval", 4), layers, "linear_attention")
    kinds = config.kinds("layer_types", layers, ("linear_attention", "full_attention"), default)

    def layer(make: LayerBuilder, index: int) -> Layer:
        linear = index < layers and kinds[index] == "linear_attention"
        mixer = _delta_net(make, config) if linear else _full_attention(make, config)
        if config.has("num_experts"):
            return make.layer(mixer, _experts(make, config))
        return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")))

    return decoder(reading, layer, draft_layers=draft_layers, draft_module=MTP_MODULE)


def _full_attention(make: LayerBuilder, config: Config) -> Mixer:
    attention = plain_attention(config)
    return make.grouped(attention, gated=config.boolean("attn_output_gate", True), vectors=2 * attention.key_dim)


def _delta_net(make: LayerBuilder, config: Config) -> Mixer:
    key_heads, value_heads = (
        config.positive("linear_num_key_heads"),
        config.positive("linear_num_value_heads"),
    )
    key_dim, value_dim = config.positive("linear_key_head_dim"), config.positive("linear_value_head_dim")
    keys, values = key_heads * key_dim, value_heads * value_dim
    kernel = config.positive("linear_conv_kernel_dim")
    channels = 2 * keys + values
    matrices = (
        make.columns("linear_attn.in_proj_qkv", channels, units=key_heads, fused="in_proj"),
        make.columns("linear_attn.in_proj_z", values, units=value_heads, fused="in_proj"),
        make.columns("linear_attn.in_proj_ba", 2 * value_heads, units=value_heads),
        make.rows("linear_attn.out_proj", values, units=value_heads),
    )
    attention = LinearAttention(
        kind="gated_delta_net",
        heads=value_heads,
        state_elements=value_heads * key_dim * value_dim,
        convolution_elements=channels * (kernel - 1),
        state_precision=precision_of_dtype(config.text("mamba_ssm_dtype", "float32")),
        # Per head: decay, read of k, rank-one update, read of q: about four passes over the state.
        flops_per_position=8.0 * value_heads * key_dim * value_dim,
    )
    return Mixer(attention, matrices, channels * kernel + 2 * value_heads + value_dim)


def _experts(make: LayerBuilder, config: Config) -> ExpertBlock:
    shared = make.gated_mlp("mlp.shared_expert", config.positive("shared_expert_intermediate_size"))
    return make.experts(
        pool(config, "num_experts", shared=1),
        make.expert("mlp.experts", config.positive("moe_intermediate_size")),
        router="mlp.gate",
        shared=(*shared, make.router("mlp.shared_expert_gate", 1)),
    )
