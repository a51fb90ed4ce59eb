"""Multi-head latent attention: DeepSeek V3, R1, V3.2 (DSA), Kimi K2, GLM-4.7-Flash, GLM-5 to 5.3 (DSA)."""

from __future__ import annotations

from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Reading, builder, model, mtp_builder
from specmargin.architecture.families.mixture import with_shared
from specmargin.architecture.precision import BF16
from specmargin.architecture.types import Architecture, LatentAttention, Layer, Matrix, TokenSelection

# GEMMs that run at the same time in a layer with an indexer.
_STAGES = {
    "q_a_proj": "input",
    "kv_a_proj_with_mqa": "input",
    "indexer.wk": "input",
    "indexer.weights_proj": "input",
    "q_b_proj": "query",
    "indexer.wq_b": "query",
}


def deepseek_v3(reading: Reading) -> Architecture:
    return _latent_stack(reading, "deepseek_v3")


def deepseek_v32(reading: Reading) -> Architecture:
    return _latent_stack(reading, "deepseek_v32", selects=True)


def glm_moe_dsa(reading: Reading) -> Architecture:
    return _latent_stack(reading, "glm_moe_dsa", selects=True)


def glm4_moe_lite(reading: Reading) -> Architecture:
    return _latent_stack(reading, "glm4_moe_lite")


def _latent_stack(reading: Reading, family: str, *, selects: bool = False) -> Architecture:
    config = reading.config
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    kinds = config.kinds("mlp_layer_types", layers, ("dense", "sparse"), _mlp_kinds(config, layers))
    indexers = config.kinds("indexer_types", layers, ("full", "shared"), ["full"] * layers)

    def layer(make: LayerBuilder, *, routes: bool, owns_indexer: bool) -> Layer:
        attention = _attention(config, selects=selects, owns_indexer=owns_indexer)
        projections, vectors = latent_projections(make, config, attention)
        return Layer(
            attention=attention,
            projections=projections,
            dense=() if routes else make.gated_mlp("mlp", config.positive("intermediate_size")),
            experts=with_shared(make, config, "n_routed_experts", name="mlp") if routes else None,
            vector_parameters=2 * hidden + vectors,
        )

    stack = [
        layer(builder(reading, i, hidden), routes=kinds[i] == "sparse", owns_indexer=indexers[i] == "full")
        for i in range(layers)
    ]
    mtp = config.integer("num_nextn_predict_layers", 0)
    return model(
        reading,
        family=family,
        hidden=hidden,
        layers=stack,
        tied_default=False,
        draft_layers=[layer(mtp_builder(reading, hidden, index=layers), routes=True, owns_indexer=True)] if mtp else [],
    )


def _mlp_kinds(config: Config, layers: int) -> list[str]:
    """The first layers are dense; after them every `moe_layer_freq`-th layer routes."""
    if config.has("mlp_layer_types"):
        return []
    first, every = config.integer("first_k_dense_replace"), config.positive("moe_layer_freq", 1)
    return ["sparse" if i >= first and i % every == 0 else "dense" for i in range(layers)]


def _attention(config: Config, *, selects: bool, owns_indexer: bool) -> LatentAttention:
    selection = None
    if selects:
        selection = TokenSelection(
            index_heads=config.positive("index_n_heads"),
            index_dim=config.positive("index_head_dim"),
            top_k=config.positive("index_topk"),
            owns_indexer=owns_indexer,
        )
    return LatentAttention(
        heads=config.positive("num_attention_heads"),
        latent_dim=config.positive("kv_lora_rank"),
        rope_dim=config.positive("qk_rope_head_dim"),
        key_dim=config.positive("qk_nope_head_dim") + config.positive("qk_rope_head_dim"),
        value_dim=config.positive("v_head_dim"),
        selection=selection,
    )


def latent_projections(
    make: LayerBuilder, config: Config, attention: LatentAttention
) -> tuple[tuple[Matrix, ...], int]:
    """Down- and up-projections. kv_b is what the absorbed form multiplies queries and outputs by.

    The down-projections to the latents are replicated under tensor parallelism, the per-head ones are split. An indexer
    (DSA) runs beside them, on a parallel stream (SGLang and TensorRT-LLM); its weights are not quantised.
    """
    heads, latent, rope = attention.heads, attention.latent_dim, attention.rope_dim
    nope, value = config.positive("qk_nope_head_dim"), config.positive("v_head_dim")
    rank = config.optional_integer("q_lora_rank")
    vectors = latent
    if rank is None:
        queries = [make.columns("self_attn.q_proj", heads * (nope + rope), units=heads)]
    else:
        vectors += rank
        queries = [
            make.whole("self_attn.q_a_proj", rank, fused="qkv_a"),
            make.columns("self_attn.q_b_proj", heads * (nope + rope), units=heads, inputs=rank),
        ]
    matrices = [
        *queries,
        make.whole("self_attn.kv_a_proj_with_mqa", latent + rope, fused="qkv_a" if rank else ""),
        make.columns("self_attn.kv_b_proj", heads * (nope + value), units=heads, inputs=latent),
        make.rows("self_attn.o_proj", heads * value, units=heads),
    ]
    selection = attention.selection
    if selection is not None and selection.owns_indexer:
        matrices += [
            make.whole("self_attn.indexer.wq_b", selection.index_heads * selection.index_dim, inputs=rank),
            make.whole("self_attn.indexer.wk", selection.index_dim),
            replace(make.whole("self_attn.indexer.weights_proj", selection.index_heads), precision=BF16),
        ]
        matrices = [
            replace(matrix, stage=_STAGES.get(matrix.name.removeprefix("self_attn."), "")) for matrix in matrices
        ]
        vectors += 2 * selection.index_dim
    return tuple(matrices), vectors
