"""Mixtures whose attention layers differ in shape or reach: Llama 4, Gemma 4, MiMo-V2, Step-3.5, Step-3.7, Laguna."""

from __future__ import annotations

from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import (
    MTP_MODULE,
    LayerBuilder,
    Reading,
    decoder,
    mtp_layers,
    plain_attention,
    pool,
    routed,
)
from specmargin.architecture.families.dense import every_nth
from specmargin.architecture.types import Architecture, ExpertBlock, GroupedAttention, Layer
from specmargin.errors import ArchitectureError

_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def llama4(reading: Reading) -> Architecture:
    """Three chunked layers to each full one. A chunk is priced as a window of its size: an upper bound that is
    up to twice too high where the context is many chunks long."""
    config = reading.config
    layers = config.layer_count()
    default = every_nth(config.positive("no_rope_layer_interval", 4), layers, _CHUNKED)
    kinds = config.kinds("layer_types", layers, (_FULL, _CHUNKED), default)
    chunk = config.optional_integer("attention_chunk_size")
    moe_every = config.positive("interleave_moe_layer_step")
    moe_layers = config.layer_indices("moe_layers") or frozenset(range(moe_every - 1, layers, moe_every))
    biased = config.boolean("attention_bias", False)

    def layer(make: LayerBuilder, index: int) -> Layer:
        attention = plain_attention(config, window=chunk if kinds[index] == _CHUNKED else None)
        mixer = make.grouped(attention, biased=biased, output_biased=biased)
        if index not in moe_layers:
            return make.layer(mixer, make.gated_mlp("feed_forward", config.positive("intermediate_size_mlp")))
        intermediate = config.positive("intermediate_size")
        block = make.experts(
            pool(config, "num_local_experts", shared=1),
            make.expert("feed_forward.experts", intermediate),
            router="feed_forward.router",
            shared=make.gated_mlp("feed_forward.shared_expert", intermediate),
        )
        return make.layer(mixer, block)

    return decoder(reading, layer)


def gemma4(reading: Reading) -> Architecture:
    """Sliding layers with many small KV heads, global layers with few large ones whose values are their keys;
    the mixture has a dense MLP beside the experts in every layer."""
    config = reading.config
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        if config.integer(key, 0):
            raise ArchitectureError(f"{config.origin}: Gemma 4 with {key} > 0 is not read yet")
    kinds = config.kinds("layer_types", config.layer_count(), (_FULL, _SLIDING))
    keys_are_values = config.boolean("attention_k_eq_v", False)
    has_experts = config.boolean("enable_moe_block", False)

    def experts(make: LayerBuilder) -> ExpertBlock:
        expert = make.expert("experts", config.positive("moe_intermediate_size"))
        return make.experts(pool(config, "num_experts", per_token="top_k_experts"), expert, router="router.proj")

    def layer(make: LayerBuilder, index: int) -> Layer:
        local = kinds[index] == _SLIDING
        attention = gemma4_attention(config, local=local)
        mixer = make.grouped(attention, shared_key_value=keys_are_values and not local, vectors=2 * attention.key_dim)
        plain = make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")), norms=4)
        if not has_experts:
            return plain
        block = experts(make)
        more = 4 * make.hidden + block.pool.experts  # three more norms, the router's scale, one scale per expert
        return replace(plain, experts=block, vector_parameters=plain.vector_parameters + more)

    return decoder(reading, layer, tied_default=True)


def gemma4_attention(config: Config, *, local: bool) -> GroupedAttention:
    dim = config.positive("head_dim" if local else "global_head_dim")
    return GroupedAttention(
        heads=config.positive("num_attention_heads"),
        kv_heads=config.positive("num_key_value_heads" if local else "num_global_key_value_heads"),
        key_dim=dim,
        value_dim=dim,
        window=config.positive("sliding_window") if local else None,
    )


def mimo_v2(reading: Reading) -> Architecture:
    """Windowed and full attention layers, and MTP blocks that the configuration does not mention: a windowed layer with
    a dense MLP (vLLM's mimo_v2_mtp.py). The checkpoint has three; engines run one of them again and again."""
    config = reading.config
    layers = config.layer_count()
    is_local = [*config.per_layer("hybrid_layer_pattern", layers), True]
    has_experts = [*config.per_layer("moe_layer_freq", layers), False]

    def attention_of(*, local: bool) -> GroupedAttention:
        prefix = "swa_" if local else ""
        return GroupedAttention(
            heads=config.positive(f"{prefix}num_attention_heads"),
            kv_heads=config.positive(f"{prefix}num_key_value_heads"),
            key_dim=config.positive(f"{prefix}head_dim"),
            value_dim=config.positive(f"{prefix}v_head_dim"),
            window=config.positive("sliding_window") if local else None,
            sinks=config.boolean("add_swa_attention_sink_bias" if local else "add_full_attention_sink_bias", False),
        )

    def layer(make: LayerBuilder, index: int) -> Layer:
        attention = attention_of(local=bool(is_local[index]))
        mixer = make.grouped(attention, vectors=attention.heads if attention.sinks else 0)
        if has_experts[index]:
            return make.layer(mixer, routed(make, config, "n_routed_experts"))
        return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")))

    return decoder(reading, layer, draft_layers=1, draft_module=MTP_MODULE)


def step3p5(reading: Reading) -> Architecture:
    """Three sliding layers, with more heads, to each full one; a gate per head. The keys are those of the checkpoints
    (`moe_num_experts`, `num_attention_groups`, `attention_other_setting`).

    The MTP blocks are sliding layers with a dense MLP and an LM head of their own; engines run them one after another.
    """
    config = reading.config
    layers = config.layer_count()
    kinds = [*config.kinds("layer_types", layers, (_FULL, _SLIDING)), _SLIDING]
    routing = _routing_layers(config)

    def layer(make: LayerBuilder, index: int) -> Layer:
        attention = _step_attention(config, kinds[index])
        mixer = make.grouped(attention, vectors=2 * attention.key_dim)
        gate = make.columns("self_attn.g_proj", attention.heads, units=attention.heads)
        mixer = mixer._replace(projections=(*mixer.projections, gate))
        if index not in routing or index >= layers:
            return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")))
        block = make.experts(
            pool(config, "moe_num_experts", per_token="moe_top_k", shared=1),
            make.expert("moe", config.positive("moe_intermediate_size")),
            router="moe.gate",
            shared=make.gated_mlp("share_expert", config.positive("share_expert_dim")),
        )
        return make.layer(mixer, block)

    built = decoder(reading, layer, draft_layers=mtp_layers(config))
    head = built.draft_head
    return built if head is None else replace(built, draft_head=replace(head, shares_lm_head=False))


def laguna(reading: Reading) -> Architecture:
    """Three sliding layers to each full one, with a head count per layer and a gate per head or per channel."""
    config = reading.config
    layers = config.layer_count()
    kinds = config.kinds("layer_types", layers, (_FULL, _SLIDING))
    blocks = config.kinds("mlp_layer_types", layers, ("dense", "sparse"))
    heads = config.per_layer("num_attention_heads_per_layer", layers, [config.positive("num_attention_heads")] * layers)
    gate_dim = {"per-head": 1, "per-element": config.positive("head_dim"), "True": 1, "False": 0}
    gating = str(config.values.get("gating", False))
    if gating not in gate_dim:
        raise ArchitectureError(f"{config.origin}: 'gating' must be per-head or per-element, got {gating!r}")

    def layer(make: LayerBuilder, index: int) -> Layer:
        window = config.positive("sliding_window") if kinds[index] == _SLIDING else None
        attention = replace(plain_attention(config, window=window), heads=heads[index])
        mixer = make.grouped(attention, vectors=2 * attention.key_dim)
        if gate_dim[gating]:
            gate = make.columns("self_attn.g_proj", attention.heads * gate_dim[gating], units=attention.heads)
            mixer = mixer._replace(projections=(*mixer.projections, gate))
        if blocks[index] == "dense":
            return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")))
        block = make.experts(
            pool(config, "num_experts", shared=1),
            make.expert("mlp.experts", config.positive("moe_intermediate_size")),
            router="mlp.gate",
            shared=make.gated_mlp("mlp.shared_expert", config.positive("shared_expert_intermediate_size")),
        )
        return make.layer(mixer, block)

    return decoder(reading, layer)


def _routing_layers(config: Config) -> frozenset[int]:
    """`moe_layers_enum`: the layers with experts, "3,4,5"."""
    listed = config.text("moe_layers_enum")
    if not all(part.strip().isdigit() for part in listed.split(",")):
        raise ArchitectureError(f"{config.origin}: 'moe_layers_enum' must list layer numbers, got {listed!r}")
    return frozenset(int(part) for part in listed.split(","))


def _step_attention(config: Config, kind: str) -> GroupedAttention:
    """Sliding layers have their own head counts, in `attention_other_setting`."""
    sliding = kind == _SLIDING
    shape = config.section("attention_other_setting") if sliding else config
    dim = shape.positive("head_dim", config.positive("head_dim"))
    return GroupedAttention(
        heads=shape.positive("num_attention_heads"),
        kv_heads=shape.positive("num_attention_groups"),
        key_dim=dim,
        value_dim=dim,
        window=config.positive("sliding_window") if sliding else None,
    )
