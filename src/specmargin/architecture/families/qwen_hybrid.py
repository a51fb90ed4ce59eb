"""Qwen3-Next, Qwen3.5 and Qwen3.6: three GatedDeltaNet layers to each full-attention layer, dense or MoE."""

from __future__ import annotations

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Reading, builder, model, mtp_builder
from specmargin.architecture.families.dense import plain_attention
from specmargin.architecture.families.mixture import pool
from specmargin.architecture.precision import precision_of_dtype
from specmargin.architecture.types import Architecture, Attention, ExpertBlock, Layer, LinearAttention, Matrix


def qwen3_next(reading: Reading) -> Architecture:
    return _hybrid(reading, "qwen3_next", mtp=True)


def qwen3_5_moe(reading: Reading) -> Architecture:
    return _hybrid(reading, "qwen3_5_moe", mtp=reading.config.integer("mtp_num_hidden_layers", 0) > 0)


def qwen3_5(reading: Reading) -> Architecture:
    return _hybrid(reading, "qwen3_5", mtp=reading.config.integer("mtp_num_hidden_layers", 0) > 0)


def _hybrid(reading: Reading, family: str, *, mtp: bool) -> Architecture:
    config = reading.config
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    every = config.positive("full_attention_interval", 4)
    default = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    kinds = config.kinds("layer_types", layers, ("linear_attention", "full_attention"), default)

    def layer(make: LayerBuilder, *, linear: bool) -> Layer:
        attention, projections, vectors = (_delta_net if linear else _full_attention)(make, config)
        experts = _experts(make, config) if config.has("num_experts") else None
        return Layer(
            attention=attention,
            projections=projections,
            dense=() if experts else make.gated_mlp("mlp", config.positive("intermediate_size")),
            experts=experts,
            vector_parameters=2 * hidden + vectors,
        )

    return model(
        reading,
        family=family,
        hidden=hidden,
        layers=[layer(builder(reading, i, hidden), linear=kinds[i] == "linear_attention") for i in range(layers)],
        tied_default=False,
        draft_layers=[layer(mtp_builder(reading, hidden), linear=False)] if mtp else [],
    )


Mixer = tuple[Attention, tuple[Matrix, ...], int]


def _full_attention(make: LayerBuilder, config: Config) -> Mixer:
    attention = plain_attention(config)
    gated = config.boolean("attn_output_gate", True)
    return attention, make.grouped_projections(attention, gated=gated), 2 * attention.key_dim


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
    return attention, matrices, channels * kernel + 2 * value_heads + value_dim


def _experts(make: LayerBuilder, config: Config) -> ExpertBlock:
    shared = config.positive("shared_expert_intermediate_size")
    return make.experts(
        pool(config, "num_experts", shared=1),
        name="mlp.experts",
        router="mlp.gate",
        intermediate=config.positive("moe_intermediate_size"),
        shared=(*make.gated_mlp("mlp.shared_expert", shared), make.router("mlp.shared_expert_gate", 1)),
    )
