"""Kimi-K3: Kimi Delta Attention with MLA in every fourth layer, experts in a latent space, attention residuals.

Shapes from vLLM's kimi_k3 (kda.py, mla.py, model.py). Attention residuals mix the outputs of earlier blocks of layers:
two vectors per sublayer, and reads of activations, which are not priced.
"""

from __future__ import annotations

from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Reading, builder, model
from specmargin.architecture.families.deepseek import latent_projections
from specmargin.architecture.families.mixture import pool
from specmargin.architecture.precision import FP32
from specmargin.architecture.types import (
    Architecture,
    Attention,
    ExpertBlock,
    LatentAttention,
    Layer,
    LinearAttention,
    Matrix,
)
from specmargin.errors import ArchitectureError

Mixer = tuple[Attention, tuple[Matrix, ...], int]


def kimi_linear(reading: Reading) -> Architecture:
    config = reading.config
    if config.optional_integer("routed_expert_hidden_size") is None or not config.has("attn_res_block_size"):
        raise ArchitectureError(f"{config.origin}: of this family only Kimi-K3 is read (latent experts, residuals)")
    if config.integer("num_nextn_predict_layers", 0):
        raise ArchitectureError(f"{config.origin}: MTP layers of this family are not read yet")
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    linear = config.section("linear_attn_config")
    full = linear.layer_indices("full_attn_layers") or frozenset()  # counted from 1

    def layer(index: int) -> Layer:
        make = builder(reading, index, hidden)
        attention, projections, vectors = _latent(make, config) if index + 1 in full else _delta(make, linear)
        routes = index >= config.integer("first_k_dense_replace")
        latent = config.positive("routed_expert_hidden_size") if config.boolean("latent_moe_use_norm", False) else 0
        return Layer(
            attention=attention,
            projections=projections,
            dense=() if routes else make.gated_mlp("mlp", config.positive("intermediate_size")),
            experts=_experts(make, config) if routes else None,
            # Two norms; for each of the two residuals a norm and a vector of scores.
            vector_parameters=6 * hidden + vectors + (latent if routes else 0),
        )

    return model(
        reading,
        family="kimi_linear",
        hidden=hidden,
        layers=[layer(i) for i in range(layers)],
        tied_default=False,
        vector_parameters=3 * hidden,  # the final norm, and norm and scores of the last residual
    )


def _delta(make: LayerBuilder, linear: Config) -> Mixer:
    """KDA: a delta rule whose decay is a vector per head. q, k, v and the output gate have full rank, the decay has
    the rank of a head."""
    heads, dim = linear.positive("num_heads"), linear.positive("head_dim")
    if not linear.boolean("use_full_rank_gate", False):
        raise ArchitectureError(f"{linear.origin}: a low-rank output gate is not read yet")
    inner, kernel = heads * dim, linear.positive("short_conv_kernel_size")
    matrices = (
        make.columns("self_attn.qkvg_proj", 4 * inner, units=heads, fused="in_proj"),
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
    return attention, matrices, 3 * inner * kernel + inner + heads + dim


def _latent(make: LayerBuilder, config: Config) -> Mixer:
    """MLA, with an output gate as wide as the heads' values."""
    attention = LatentAttention(
        heads=config.positive("num_attention_heads"),
        latent_dim=config.positive("kv_lora_rank"),
        rope_dim=config.positive("qk_rope_head_dim"),
        key_dim=config.positive("qk_nope_head_dim") + config.positive("qk_rope_head_dim"),
        value_dim=config.positive("v_head_dim"),
    )
    projections, vectors = latent_projections(make, config, attention)
    if config.boolean("mla_use_output_gate", False):
        width = attention.heads * attention.value_dim
        projections = (*projections, make.columns("self_attn.g_proj", width, units=attention.heads))
    return attention, projections, vectors


def _experts(make: LayerBuilder, config: Config) -> ExpertBlock:
    """Routed experts in a latent space of their own, behind projections that every token takes."""
    latent, intermediate = config.positive("routed_expert_hidden_size"), config.positive("moe_intermediate_size")
    shared = config.integer("num_shared_experts", 0)
    name = "block_sparse_moe"
    return make.experts(
        pool(config, "num_experts", shared=shared, per_token_key="num_experts_per_token"),
        name=f"{name}.experts",
        router=f"{name}.gate",
        intermediate=intermediate,
        shared=(
            *(make.gated_mlp(f"{name}.shared_experts", shared * intermediate) if shared else ()),
            # Never quantised: vLLM passes no quantisation to the projections of the latent space.
            replace(make.whole(f"{name}.routed_expert_down_proj", latent), precision=make.scheme.base),
            replace(
                make.whole(f"{name}.routed_expert_up_proj", make.hidden, inputs=latent), precision=make.scheme.base
            ),
        ),
        expert=make.expert(f"{name}.experts", intermediate, width=latent),
    )
