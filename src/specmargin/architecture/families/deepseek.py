"""Multi-head latent attention: DeepSeek V3, R1, V3.2 (DSA), Kimi K2, GLM-4.7-Flash, GLM-5 to 5.3 (DSA)."""

from __future__ import annotations

from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Mixer, Reading, decoder, mtp_layers, routed
from specmargin.architecture.precision import BF16
from specmargin.architecture.types import Architecture, LatentAttention, Layer, TokenSelection

# GEMMs that run at the same time in a layer with an indexer.
_STAGES = {
    "q_a_proj": "input",
    "kv_a_proj_with_mqa": "input",
    "indexer.wk": "input",
    "indexer.weights_proj": "input",
    "q_b_proj": "query",
    "indexer.wq_b": "query",
}


def latent(reading: Reading, *, selects: bool = False) -> Architecture:
    """`selects`: an indexer chooses the tokens that a query reads (DSA)."""
    config = reading.config
    layers = config.layer_count()
    kinds = [*config.kinds("mlp_layer_types", layers, ("dense", "sparse"), mlp_kinds(config, layers)), "sparse"]
    indexers = [*config.kinds("indexer_types", layers, ("full", "shared"), ["full"] * layers), "full"]

    def layer(make: LayerBuilder, index: int) -> Layer:
        attention = latent_attention(config)
        if selects:
            selection = replace(token_selection(config), owns_indexer=indexers[index] == "full")
            attention = replace(attention, selection=selection)
        mixer = latent_mixer(make, config, attention)
        if kinds[index] == "dense":
            return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")))
        return make.layer(mixer, routed(make, config, "n_routed_experts", shared="n_shared_experts"))

    return decoder(reading, layer, draft_layers=mtp_layers(config))


def mlp_kinds(config: Config, layers: int) -> list[str]:
    """The first layers are dense; after them every `moe_layer_freq`-th layer routes."""
    if config.has("mlp_layer_types"):
        return []
    first, every = config.integer("first_k_dense_replace"), config.positive("moe_layer_freq", 1)
    return ["sparse" if i >= first and i % every == 0 else "dense" for i in range(layers)]


def token_selection(config: Config) -> TokenSelection:
    return TokenSelection(
        index_heads=config.positive("index_n_heads"),
        index_dim=config.positive("index_head_dim"),
        top_k=config.positive("index_topk"),
    )


def latent_attention(config: Config) -> LatentAttention:
    return LatentAttention(
        heads=config.positive("num_attention_heads"),
        latent_dim=config.positive("kv_lora_rank"),
        rope_dim=config.integer("qk_rope_head_dim"),
        key_dim=config.positive("qk_nope_head_dim") + config.integer("qk_rope_head_dim"),
        value_dim=config.positive("v_head_dim"),
    )


def latent_mixer(make: LayerBuilder, config: Config, attention: LatentAttention) -> Mixer:
    """Down- and up-projections. kv_b is what the absorbed form multiplies queries and outputs by.

    The down-projections to the latents are replicated under tensor parallelism, the per-head ones are split. An indexer
    (DSA) runs beside them, on a parallel stream (SGLang and TensorRT-LLM); its weights are not quantised.
    """
    heads, latent, rope = attention.heads, attention.latent_dim, attention.rope_dim
    nope, value = config.positive("qk_nope_head_dim"), attention.value_dim
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
    return Mixer(attention, tuple(matrices), vectors)
