"""Families without a reader: a configuration whose fields are all known words, read by them.

Grouped-query attention, MLA with or without an indexer, windows, GatedDeltaNet and Mamba-2 layers; dense layers and
experts, shared ones included; MTP layers. What a configuration leaves open is assumed and said; a field that nothing
reads and that is not known to be harmless (general.toml) refuses it.
"""

from __future__ import annotations

from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import (
    LayerBuilder,
    Mixer,
    Reading,
    decoder,
    mtp_layers,
    plain_attention,
    pool,
)
from specmargin.architecture.families.deepseek import latent_attention, latent_mixer, token_selection
from specmargin.architecture.families.dense import every_nth
from specmargin.architecture.families.nemotron import nemotron_h
from specmargin.architecture.families.qwen_hybrid import delta_net, gated_attention
from specmargin.architecture.fields import Fields
from specmargin.architecture.types import Architecture, ExpertBlock, Layer, Matrix
from specmargin.errors import ArchitectureError, UnknownFamilyError
from specmargin.sources import assumed

_FULL, _SLIDING, _LINEAR, _SELECTING = (
    "full_attention",
    "sliding_attention",
    "linear_attention",
    "deepseek_sparse_attention",
)
_GATED = ("silu", "swish", "swiglu", "swigluoai", "")
_PLAIN = ("relu2",)
# Fields that say which layers of a mixture are dense.
_SAY_WHICH = ("mlp_layer_types", "first_k_dense_replace", "moe_layer_freq", "mlp_only_layers", "decoder_sparse_step")


def general(reading: Reading) -> Architecture:
    fields = Fields(reading.config.values)
    config = Config(origin=reading.config.origin, values=fields)
    refused = f"{config.origin}: the family {reading.family!r} is not known to Specmargin"
    try:
        read = replace(reading, config=config)
        architecture = _blocks(read, fields) if _lists_blocks(config) else _layers(read, fields)
    except ArchitectureError as error:
        reason = str(error).removeprefix(f"{config.origin}: ")
        raise UnknownFamilyError(f"{refused}, and its fields do not describe it: {reason}") from None
    unknown = fields.not_understood()
    if unknown:
        raise UnknownFamilyError(
            f"{refused}, and these fields of it may change its price but are not understood: {', '.join(unknown)}; "
            "remove from a copy of the file those that change neither weights nor attention"
        )
    assumptions = _assumptions(config, architecture)
    detail = f"{reading.source.detail}; unknown family, read by its fields; assumed: {'; '.join(assumptions)}"
    return replace(architecture.sourced(assumed(detail)), assumptions=assumptions)


def _assumptions(config: Config, architecture: Architecture) -> tuple[str, ...]:
    """What the configuration does not state."""
    said = [
        ("hidden_act", "MLPs are gated, of three matrices"),
        ("tie_word_embeddings", "embedding and LM head are two matrices"),
    ]
    open_fields = [text for key, text in said if not config.has(key)]
    if not config.has("num_key_value_heads") and not config.has("kv_lora_rank"):
        open_fields.append("as many KV heads as heads")
    if architecture.is_moe and not _lists_blocks(config):
        if not config.has("moe_intermediate_size"):
            open_fields.append("'intermediate_size' is that of an expert")
        if not any(block.pool.shared_experts for _, block in architecture.expert_groups):
            open_fields.append("no shared experts")
    if config.has("linear_num_value_heads") and not config.has("attn_output_gate"):
        open_fields.append("full attention has an output gate")
    if architecture.draft_head is None:
        open_fields.append("no MTP layers")
    return (*open_fields, "no attention sinks, no weights besides those that the fields name")


# --- a list of blocks: one part per layer, as in Nemotron-H ---


def _lists_blocks(config: Config) -> bool:
    return config.has("layers_block_type") or config.has("hybrid_override_pattern")


def _blocks(reading: Reading, fields: Fields) -> Architecture:
    config = reading.config
    if config.text("hidden_act", "relu2") not in _PLAIN:
        raise ArchitectureError("'hidden_act' must be relu2 where blocks are listed")
    architecture = nemotron_h(reading)
    if config.has("num_hidden_layers") and config.layer_count() != architecture.layers:
        raise ArchitectureError("'num_hidden_layers' is not the number of listed blocks")
    fields.dismiss("intermediate_size", "mamba_ssm_cache_dtype", "layers_block_type", "hybrid_override_pattern")
    if architecture.draft_head is None:
        fields.dismiss("mtp_layers_block_type", "mtp_hybrid_override_pattern")
    return architecture


# --- layers of attention and a feed-forward part ---


def _layers(reading: Reading, fields: Fields) -> Architecture:
    config = reading.config
    layers = config.layer_count()
    kinds = [*_attention_kinds(config, fields, layers), _SELECTING if config.has("index_topk") else _FULL]
    owners = [*_indexers(config, fields, layers), True]
    routes = [*_routing(config, layers), config.integer("num_experts", 0) > 0]

    def layer(make: LayerBuilder, index: int) -> Layer:
        mixer = _mixer(make, config, kinds[index], owns_indexer=owners[index])
        return make.layer(mixer, _experts(make, config) if routes[index] else _mlp(make, config, routed=any(routes)))

    if config.has("kv_lora_rank"):
        fields.dismiss("num_key_value_heads", "head_dim", "qk_head_dim")
    if any(routes):
        fields.dismiss("intermediate_size", "dense_intermediate_size")
    mtp = mtp_layers(config) if config.boolean("use_mtp", True) else 0
    return decoder(reading, layer, draft_layers=mtp)


def _attention_kinds(config: Config, fields: Fields, layers: int) -> list[str]:
    usual = _SELECTING if config.has("index_topk") else _FULL
    pattern = config.optional_integer("sliding_window_pattern")
    interval = config.optional_integer("full_attention_interval")
    if not config.boolean("use_sliding_window", True):
        fields.dismiss("sliding_window")
    if config.has("layer_types"):
        fields.dismiss("sliding_window", "sliding_window_pattern", "full_attention_interval")
        return config.kinds("layer_types", layers, (_FULL, _SLIDING, _LINEAR, _SELECTING))
    if interval:
        return every_nth(interval, layers, _LINEAR)
    if pattern:
        return every_nth(pattern, layers, _SLIDING)
    if config.has("linear_num_value_heads"):
        raise ArchitectureError("'layer_types' must say which layers have linear attention")
    if config.boolean("use_sliding_window", False):
        raise ArchitectureError("'layer_types' must say which layers the sliding window covers")
    return [usual] * layers


def _mixer(make: LayerBuilder, config: Config, kind: str, *, owns_indexer: bool) -> Mixer:
    if kind == _LINEAR:
        return delta_net(make, config)
    if config.has("kv_lora_rank"):
        attention = latent_attention(config)
        if kind == _SLIDING:
            raise ArchitectureError("a sliding window over MLA is not understood")
        if kind == _SELECTING:
            attention = replace(attention, selection=replace(token_selection(config), owns_indexer=owns_indexer))
        return latent_mixer(make, config, attention)
    if kind == _SELECTING:
        raise ArchitectureError("an indexer without MLA ('kv_lora_rank') is not understood")
    if config.has("linear_num_value_heads"):
        return gated_attention(make, config)
    attention_bias = config.boolean("attention_bias", False)
    window = config.positive("sliding_window") if kind == _SLIDING else None
    return make.grouped(plain_attention(config, window=window), biased=attention_bias)


def _indexers(config: Config, fields: Fields, layers: int) -> list[bool]:
    """Whether a layer has an indexer of its own, or reuses the selection of an earlier one."""
    if config.has("indexer_types"):
        fields.dismiss("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset")
        return [kind == "full" for kind in config.kinds("indexer_types", layers, ("full", "shared"))]
    if config.integer("index_topk_freq", 1) > 1:
        raise ArchitectureError("'indexer_types' must say which layers have an indexer ('index_topk_freq' is above 1)")
    return [True] * layers


def _routing(config: Config, layers: int) -> list[bool]:
    """Whether a layer has experts, in every way to say so."""
    if not config.integer("num_experts", 0):
        return [False] * layers
    own_width = "intermediate_size" if config.has("moe_intermediate_size") else "dense_intermediate_size"
    if config.has(own_width) and not any(config.has(key) for key in _SAY_WHICH):
        raise ArchitectureError(f"one of {', '.join(_SAY_WHICH)} must say which layers are dense")
    frequency = config.values.get("moe_layer_freq", 1)
    if frequency != 1 and not isinstance(frequency, list):
        raise ArchitectureError("'moe_layer_freq' must be 1 or list the layers; which layers it counts is not known")
    listed = config.per_layer("moe_layer_freq", layers) if isinstance(frequency, list) else [1] * layers
    kinds = config.kinds("mlp_layer_types", layers, ("dense", "sparse"), ["sparse"] * layers)
    dense = config.layer_indices("mlp_only_layers") or frozenset()
    first, step = config.integer("first_k_dense_replace", 0), config.positive("decoder_sparse_step", 1)
    if not config.has("mlp_layer_types"):
        kinds = ["sparse" if i >= first and i not in dense and (i + 1) % step == 0 else "dense" for i in range(layers)]
    return [kind == "sparse" and bool(listed[i]) for i, kind in enumerate(kinds)]


def _mlp(make: LayerBuilder, config: Config, *, routed: bool) -> tuple[Matrix, ...]:
    if routed and not config.has("moe_intermediate_size"):  # then the plain field is the experts' width
        if not config.has("dense_intermediate_size"):
            raise ArchitectureError("'moe_intermediate_size' must say whether 'intermediate_size' is that of an expert")
        return _matrices(make, config, "mlp", config.positive("dense_intermediate_size"))
    return _matrices(make, config, "mlp", config.positive("intermediate_size"))


def _matrices(make: LayerBuilder, config: Config, name: str, width: int) -> tuple[Matrix, ...]:
    return make.gated_mlp(name, width) if _is_gated(config) else make.plain_mlp(name, width)


def _is_gated(config: Config) -> bool:
    activation = config.text("hidden_act", "")
    if activation not in _GATED + _PLAIN:
        raise ArchitectureError(f"whether an MLP with {activation!r} as 'hidden_act' is gated is not known")
    return activation in _GATED


def _experts(make: LayerBuilder, config: Config) -> ExpertBlock:
    width = config.positive("moe_intermediate_size", config.optional_integer("intermediate_size"))
    count, shared_width = config.integer("n_shared_experts", 0), config.integer("shared_expert_intermediate_size", 0)
    if shared_width and count > 1:
        raise ArchitectureError("whether 'shared_expert_intermediate_size' is of one shared expert or all is not known")
    total = shared_width or count * width
    return make.experts(
        pool(config, "num_experts", shared=max(count, 1) if total else 0),
        make.expert("mlp.experts", width, gated=_is_gated(config)),
        router="mlp.gate",
        shared=_matrices(make, config, "mlp.shared_experts", total) if total else (),
    )
