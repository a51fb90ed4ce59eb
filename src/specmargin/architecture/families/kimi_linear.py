"""Kimi-K3: Kimi Delta Attention with MLA in every fourth layer, experts in a latent space, attention residuals.

Shapes from vLLM's kimi_k3 (kda.py, mla.py, model.py). Attention residuals mix the outputs of earlier blocks of layers:
two vectors per sublayer, and reads of activations, which are not priced.
"""

from __future__ import annotations

from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Mixer, Reading, decoder, routed
from specmargin.architecture.families.deepseek import latent_attention, latent_mixer
from specmargin.architecture.precision import FP32
from specmargin.architecture.types import Architecture, ExpertBlock, Layer, LinearAttention, Matrix
from specmargin.errors import ArchitectureError


def kimi_linear(reading: Reading) -> Architecture:
    config = reading.config
    if config.optional_integer("routed_expert_hidden_size") is None or not config.has("attn_res_block_size"):
        raise ArchitectureError(f"{config.origin}: of this family only Kimi-K3 is read (latent experts, residuals)")
    if config.integer("num_nextn_predict_layers", 0):
        raise ArchitectureError(f"{config.origin}: MTP layers of this family are not read yet")
    linear = config.section("linear_attn_config")
    full = linear.layer_indices("full_attn_layers") or frozenset()  # counted from 1
    first_routed = config.integer("first_k_dense_replace")
    normed_latent = config.positive("routed_expert_hidden_size") if config.boolean("latent_moe_use_norm", False) else 0

    def layer(make: LayerBuilder, index: int) -> Layer:
        mixer = _latent(make, config) if index + 1 in full else delta_attention(make, linear)
        # Six vectors: two norms; for each of the two residuals a norm and a vector of scores.
        if index < first_routed:
            return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")), norms=6)
        mixer = mixer._replace(vectors=mixer.vectors + normed_latent)
        return make.layer(mixer, _experts(make, config), norms=6)

    # The final norm, and norm and scores of the last residual.
    return decoder(reading, layer, vector_parameters=3 * reading.hidden)


def delta_attention(make: LayerBuilder, linear: Config) -> Mixer:
    """KDA: a delta rule whose decay is a vector per head, with the rank of a head. q, k and v have full rank, the
    output gate has either."""
    heads, dim = linear.positive("num_heads"), linear.positive("head_dim")
    inner, kernel = heads * dim, linear.positive("short_conv_kernel_size")
    if linear.boolean("use_full_rank_gate", False):
        wide: tuple[Matrix, ...] = (make.columns("self_attn.qkvg_proj", 4 * inner, units=heads, fused="in_proj"),)
    else:
        wide = (
            make.columns("self_attn.qkv_proj", 3 * inner, units=heads, fused="in_proj"),
            make.whole("self_attn.g_a_proj", dim, fused="in_proj"),
            make.columns("self_attn.g_b_proj", inner, units=heads, inputs=dim),
        )
    matrices = (
        *wide,
        make.whole("self_attn.f_a_proj", dim, fused="in_proj"),
        make.columns("self_attn.b_proj", heads, units=heads, fused="in_proj"),
        make.columns("self_attn.f_b_proj", inner, units=heads, inputs=dim),
        make.rows("self_attn.o_proj", inner, units=heads),
    )
    attention = LinearAttention(
        kind="kimi_delta",
        heads=heads,
        state_elements=heads * dim * dim,
        convolution_elements=3 * inner * (kernel - 1),
        state_precision=FP32,
        # Per head: decay, read of k, rank-one update, read of q: about four passes over the state.
        flops_per_position=8.0 * heads * dim * dim,
    )
    return Mixer(attention, matrices, 3 * inner * kernel + inner + heads + dim)


def _latent(make: LayerBuilder, config: Config) -> Mixer:
    """MLA, with an output gate as wide as the heads' values."""
    attention = latent_attention(config)
    mixer = latent_mixer(make, config, attention)
    if not config.boolean("mla_use_output_gate", False):
        return mixer
    gate = make.columns("self_attn.g_proj", attention.heads * attention.value_dim, units=attention.heads)
    return mixer._replace(projections=(*mixer.projections, gate))


def _experts(make: LayerBuilder, config: Config) -> ExpertBlock:
    """Routed experts in a latent space of their own, behind projections that every token takes."""
    latent, name = config.positive("routed_expert_hidden_size"), "block_sparse_moe"
    block = routed(
        make,
        config,
        "num_experts",
        per_token="num_experts_per_token",
        shared="num_shared_experts",
        module=name,
        latent=latent,
    )
    projections = (
        make.whole(f"{name}.routed_expert_down_proj", latent),
        make.whole(f"{name}.routed_expert_up_proj", make.hidden, inputs=latent),
    )
    # Never quantised: vLLM passes no quantisation to the projections of the latent space.
    plain = (replace(matrix, precision=make.scheme.base) for matrix in projections)
    return replace(block, always_on=(*block.always_on, *plain))
