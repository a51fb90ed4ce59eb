"""Qwen3-Next, 3.5, 3.6 and 3.8: three GatedDeltaNet layers to each full-attention layer, dense or MoE."""

from __future__ import annotations

from dataclasses import replace

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
from specmargin.architecture.types import Architecture, BlockSelection, ExpertBlock, Layer, LinearAttention, Matrix


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
        mixer = delta_net(make, config) if linear else gated_attention(make, config)
        if config.has("num_experts"):
            return make.layer(mixer, _experts(make, config))
        return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")))

    return decoder(reading, layer, draft_layers=draft_layers, draft_module=MTP_MODULE)


def qwen4_exp(reading: Reading) -> Architecture:
    """Qwen3.8-Flash-Next: full layers read selected blocks of four tokens, and low-rank hyper-connections over several
    residual streams take the place of norms (vLLM 0.33, models/qwen4_exp/nvidia).

    The n-gram table (51B parameters, of which a token reads 16 rows) is not counted: engines keep it in host memory or
    spread it over GPUs as they like.
    """
    config = reading.config
    layers, wide = config.layer_count(), config.positive("hc_count") * reading.hidden
    allowed = ("linear_attention", "full_attention", "qwen_sparse_attention", "indexed_attention")
    kinds = config.kinds("layer_types", layers, allowed)
    with_table = config.layer_indices("ple_layer_ids") or frozenset()  # counted from 1

    def layer(make: LayerBuilder, index: int) -> Layer:
        linear = index < layers and kinds[index] == "linear_attention"
        mixer = delta_net(make, config) if linear else _selected_attention(make, config)
        before = _residual_mix(make, config, "attn_hyper_connection")
        if index < layers and index + 1 in with_table:
            before += (make.whole("ple.kv_proj", wide + make.hidden, inputs=config.positive("ple_embed_dim")),)
        mixer = mixer._replace(projections=(*before, *mixer.projections))
        block = _experts(make, config)
        block = replace(block, router=(*block.router, *_residual_mix(make, config, "mlp_hyper_connection")))
        return make.layer(mixer, block, norms=2 * config.positive("hc_count"))

    return decoder(
        reading,
        layer,
        draft_layers=mtp_layers(config, "mtp_num_hidden_layers"),
        draft_module=MTP_MODULE,
        vector_parameters=wide + 2 * config.positive("hc_lowrank") * wide,  # the mixer in place of the final norm
    )


def _residual_mix(make: LayerBuilder, config: Config, name: str) -> tuple[Matrix, ...]:
    """Down to the rank (and one weight per stream), and up again; never quantised."""
    wide, rank = config.positive("hc_count") * make.hidden, config.positive("hc_lowrank")
    down = make.whole(f"{name}.input_mix_weight_down", rank + config.positive("hc_count"), inputs=wide)
    up = make.whole(f"{name}.input_mix_weight_up", wide, inputs=rank)
    return tuple(replace(matrix, precision=make.scheme.base) for matrix in (down, up))


def _selected_attention(make: LayerBuilder, config: Config) -> Mixer:
    """Full attention over the blocks that an indexer selects; its keys are pooled over each block."""
    heads, dim = config.positive("indexer_n_heads"), config.positive("indexer_head_dim")
    block = config.positive("indexer_compress_ratio")
    selection = BlockSelection(
        index_heads=heads,
        index_dim=dim,
        block_tokens=block,
        top_blocks=config.positive("indexer_budget") // block,
        key_tokens=block,
    )
    mixer = gated_attention(make, config)
    attention = replace(plain_attention(config), selection=selection)
    index = make.whole("self_attn.indexer.index_qk_proj", (heads + config.positive("indexer_kv_heads")) * dim)
    return Mixer(attention, (*mixer.projections, index), mixer.vectors + 2 * dim)


def gated_attention(make: LayerBuilder, config: Config) -> Mixer:
    attention = plain_attention(config)
    return make.grouped(attention, gated=config.boolean("attn_output_gate", True), vectors=2 * attention.key_dim)


def delta_net(make: LayerBuilder, config: Config) -> Mixer:
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
