"""GLM-5.3-Flash: three Kimi Delta Attention layers to each MLA layer with an indexer, hyper-connections, experts.

The shapes are those of Transformers 5.23's glm5_next (parameters to the last one) and vLLM 0.33's models/glm5next.
"""

from __future__ import annotations

from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Mixer, Reading, decoder, mtp_layers, routed
from specmargin.architecture.families.deepseek import latent_attention, latent_mixer, mlp_kinds, token_selection
from specmargin.architecture.families.deepseek_v4 import connected
from specmargin.architecture.families.kimi_linear import delta_attention
from specmargin.architecture.types import Architecture, Layer

_LINEAR = "linear_attention"
_KINDS = (_LINEAR, "deepseek_sparse_attention", "indexed_attention", "full_attention")  # but for the first: one kind


def glm5_next(reading: Reading) -> Architecture:
    """The MTP layer is the one after the last: MLA, experts, and one residual stream."""
    config = reading.config
    layers, streams = config.layer_count(), config.positive("hc_mult")
    kinds = [*config.kinds("layer_types", layers, _KINDS), "full_attention"]
    blocks = [*config.kinds("mlp_layer_types", layers, ("dense", "sparse"), mlp_kinds(config, layers)), "sparse"]
    owners = [*config.kinds("indexer_types", layers, ("full", "shared"), ["full"] * layers), "full"]
    linear = config.section("linear_attn_config")

    def layer(make: LayerBuilder, index: int) -> Layer:
        if kinds[index] == _LINEAR:
            mixer = delta_attention(make, linear)
        else:
            mixer = _selecting(make, config, owns_indexer=owners[index] == "full")
        if blocks[index] == "dense":
            built = make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")))
        else:
            built = make.layer(mixer, routed(make, config, "n_routed_experts", shared="n_shared_experts"))
        return built if index >= layers else connected(built, make.hidden, streams)

    return decoder(reading, layer, draft_layers=mtp_layers(config))


def _selecting(make: LayerBuilder, config: Config, *, owns_indexer: bool) -> Mixer:
    """MLA without positions. The indexer pools the keys of a few tokens, weighted by a gate, and selects pools."""
    pool = config.positive("index_kpool", 1)
    selection = replace(token_selection(config), owns_indexer=owns_indexer, key_tokens=pool)
    mixer = latent_mixer(make, config, replace(latent_attention(config), selection=selection))
    if not owns_indexer or pool == 1:
        return mixer
    gate = make.whole("self_attn.indexer.index_kpool_compress_gate", selection.index_dim)
    gate = replace(gate, precision=make.scheme.base, stage="input")
    return mixer._replace(projections=(*mixer.projections, gate), vectors=mixer.vectors + pool * selection.index_dim)
