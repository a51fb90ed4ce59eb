"""Mixtures whose attention layers differ in shape or reach: Llama 4, Gemma 4, MiMo-V2."""

from __future__ import annotations

from specmargin.architecture.families.builder import LayerBuilder, Reading, builder, model, mtp_builder
from specmargin.architecture.families.dense import plain_attention
from specmargin.architecture.families.mixture import pool
from specmargin.architecture.types import Architecture, ExpertBlock, GroupedAttention, Layer
from specmargin.errors import ArchitectureError


def llama4(reading: Reading) -> Architecture:
    """Three chunked layers to each full one. A chunk is priced as a window of its size: an upper bound that is
    up to twice too high where the context is many chunks long."""
    config = reading.config
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    interval = config.positive("no_rope_layer_interval", 4)
    default = ["full_attention" if (i + 1) % interval == 0 else "chunked_attention" for i in range(layers)]
    kinds = config.kinds("layer_types", layers, ("full_attention", "chunked_attention"), default)
    chunk = config.optional_integer("attention_chunk_size")
    moe_every = config.positive("interleave_moe_layer_step")
    moe_layers = config.layer_indices("moe_layers") or frozenset(range(moe_every - 1, layers, moe_every))
    biased = config.boolean("attention_bias", False)
    intermediate = config.positive("intermediate_size")

    def layer(index: int) -> Layer:
        make = builder(reading, index, hidden)
        attention = plain_attention(config, window=chunk if kinds[index] == "chunked_attention" else None)
        routes = index in moe_layers
        block = make.experts(
            pool(config, "num_local_experts", shared=1),
            name="feed_forward.experts",
            router="feed_forward.router",
            intermediate=intermediate,
            shared=make.gated_mlp("feed_forward.shared_expert", intermediate),
        )
        return Layer(
            attention=attention,
            projections=make.grouped_projections(attention, biased=biased, output_biased=biased),
            dense=() if routes else make.gated_mlp("feed_forward", config.positive("intermediate_size_mlp")),
            experts=block if routes else None,
            vector_parameters=2 * hidden,
        )

    return model(reading, family="llama4", hidden=hidden, layers=[layer(i) for i in range(layers)], tied_default=False)


def gemma4(reading: Reading) -> Architecture:
    """Sliding layers with many small KV heads, global layers with few large ones whose values are their keys;
    the mixture has a dense MLP beside the experts in every layer."""
    config = reading.config
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        if config.integer(key, 0):
            raise ArchitectureError(f"{config.origin}: Gemma 4 with {key} > 0 is not read yet")
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    kinds = config.kinds("layer_types", layers, ("full_attention", "sliding_attention"))
    heads = config.positive("num_attention_heads")
    keys_are_values = config.boolean("attention_k_eq_v", False)
    has_experts = config.boolean("enable_moe_block", False)

    def attention_of(kind: str) -> GroupedAttention:
        local = kind == "sliding_attention"
        dim = config.positive("head_dim" if local else "global_head_dim")
        return GroupedAttention(
            heads=heads,
            kv_heads=config.positive("num_key_value_heads" if local else "num_global_key_value_heads"),
            key_dim=dim,
            value_dim=dim,
            window=config.positive("sliding_window") if local else None,
        )

    def layer(index: int) -> Layer:
        make = builder(reading, index, hidden)
        attention = attention_of(kinds[index])
        experts, norms = None, 4 * hidden + 2 * attention.key_dim
        if has_experts:
            block_pool = pool(config, "num_experts", per_token_key="top_k_experts")
            experts = make.experts(
                block_pool,
                name="experts",
                router="router.proj",
                intermediate=config.positive("moe_intermediate_size"),
            )
            norms += 4 * hidden + block_pool.experts  # three more norms, the router's scale, one scale per expert
        return Layer(
            attention=attention,
            projections=make.grouped_projections(
                attention, shared_key_value=keys_are_values and kinds[index] != "sliding_attention"
            ),
            dense=make.gated_mlp("mlp", config.positive("intermediate_size")),
            experts=experts,
            vector_parameters=norms,
        )

    stack = [layer(i) for i in range(layers)]
    return model(reading, family="gemma4", hidden=hidden, layers=stack, tied_default=True)


def mimo_v2(reading: Reading) -> Architecture:
    """Windowed and full attention layers, and MTP blocks that the configuration does not mention: a windowed layer with
    a dense MLP (vLLM's mimo_v2_mtp.py). The checkpoint has three; engines run one of them again and again."""
    config = reading.config
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    is_local = config.per_layer("hybrid_layer_pattern", layers)
    has_experts = config.per_layer("moe_layer_freq", layers)

    def attention_of(local: bool) -> GroupedAttention:
        prefix = "swa_" if local else ""
        return GroupedAttention(
            heads=config.positive(f"{prefix}num_attention_heads"),
            kv_heads=config.positive(f"{prefix}num_key_value_heads"),
            key_dim=config.positive(f"{prefix}head_dim"),
            value_dim=config.positive(f"{prefix}v_head_dim"),
            window=config.positive("sliding_window") if local else None,
        )

    def experts_of(make: LayerBuilder) -> ExpertBlock:
        return make.experts(
            pool(config, "n_routed_experts"),
            name="mlp.experts",
            router="mlp.gate",
            intermediate=config.positive("moe_intermediate_size"),
        )

    def layer(make: LayerBuilder, *, local: bool, routes: bool) -> Layer:
        attention = attention_of(local)
        has_sinks = config.boolean("add_swa_attention_sink_bias" if local else "add_full_attention_sink_bias", False)
        return Layer(
            attention=attention,
            projections=make.grouped_projections(attention),
            dense=() if routes else make.gated_mlp("mlp", config.positive("intermediate_size")),
            experts=experts_of(make) if routes else None,
            vector_parameters=2 * hidden + (attention.heads if has_sinks else 0),
        )

    stack = [
        layer(builder(reading, i, hidden), local=bool(is_local[i]), routes=bool(has_experts[i])) for i in range(layers)
    ]
    mtp = layer(mtp_builder(reading, hidden), local=True, routes=False)
    return model(reading, family="mimo_v2", hidden=hidden, layers=stack, tied_default=False, draft_layers=[mtp])
