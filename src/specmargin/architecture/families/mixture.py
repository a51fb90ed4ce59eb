"""Mixtures of experts on grouped-query attention: Mixtral, Qwen3-MoE, GLM-4.5 to 4.7, Hy3, Ling, MiniMax, gpt-oss,
Cohere MoE."""

from __future__ import annotations

from collections.abc import Callable

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Reading, builder, model, mtp_builder
from specmargin.architecture.families.dense import plain_attention, windows
from specmargin.architecture.types import (
    Architecture,
    BlockSelection,
    ExpertBlock,
    ExpertPool,
    GroupedAttention,
    Layer,
    Matrix,
)
from specmargin.errors import ArchitectureError

Block = tuple[tuple[Matrix, ...], ExpertBlock | None]


def pool(
    config: Config, experts_key: str, *, shared: int = 0, per_token_key: str = "num_experts_per_tok"
) -> ExpertPool:
    return ExpertPool(
        experts=config.positive(experts_key),
        experts_per_token=config.positive(per_token_key),
        shared_experts=shared,
    )


def mixtral(reading: Reading) -> Architecture:
    config = reading.config
    attention = plain_attention(config, window=config.optional_integer("sliding_window"))

    def feed_forward(make: LayerBuilder, index: int) -> Block:
        del index
        return (), make.experts(
            pool(config, "num_local_experts"),
            name="block_sparse_moe.experts",
            router="block_sparse_moe.gate",
            intermediate=config.positive("intermediate_size"),
        )

    return _stack(reading, "mixtral", lambda _: attention, feed_forward)


def qwen3_moe(reading: Reading) -> Architecture:
    config = reading.config
    attention = plain_attention(config)
    dense_layers = config.layer_indices("mlp_only_layers") or frozenset()
    step = config.positive("decoder_sparse_step", 1)
    renamed = config.has("num_local_experts") and not config.has("num_experts")  # as Transformers 5 writes it

    def feed_forward(make: LayerBuilder, index: int) -> Block:
        if index in dense_layers or (index + 1) % step:
            return make.gated_mlp("mlp", config.positive("intermediate_size")), None
        return (), make.experts(
            pool(config, "num_local_experts" if renamed else "num_experts"),
            name="mlp.experts",
            router="mlp.gate",
            intermediate=config.positive("moe_intermediate_size"),
        )

    return _stack(reading, "qwen3_moe", lambda _: attention, feed_forward, vectors=2 * attention.key_dim)


def glm4_moe(reading: Reading) -> Architecture:
    """GLM-4.5, 4.6 and 4.7: leading dense layers, then experts with one shared beside them, and an MTP layer."""
    config = reading.config
    attention = plain_attention(config)
    dense_prefix = config.integer("first_k_dense_replace")

    def feed_forward(make: LayerBuilder, index: int) -> Block:
        if index < dense_prefix:
            return make.gated_mlp("mlp", config.positive("intermediate_size")), None
        return (), with_shared(make, config, "n_routed_experts", name="mlp")

    return _stack(
        reading,
        "glm4_moe",
        lambda _: attention,
        feed_forward,
        qkv_biased=config.boolean("attention_bias"),
        vectors=2 * attention.key_dim if config.boolean("use_qk_norm", False) else 0,
        mtp_layers=config.integer("num_nextn_predict_layers", 0),
    )


def hy_v3(reading: Reading) -> Architecture:
    """Tencent Hy3: a dense first layer, then experts with one shared beside them, q and k normalised by head."""
    config = reading.config
    attention, layers = plain_attention(config), config.layer_count()
    default = ["dense", *["sparse"] * (layers - 1)]
    kinds = config.kinds("mlp_layer_types", layers, ("dense", "sparse"), default)

    def feed_forward(make: LayerBuilder, index: int) -> Block:
        if kinds[index] == "dense":
            return make.gated_mlp("mlp", config.positive("intermediate_size")), None
        return (), with_shared(make, config, "num_experts", name="mlp", shared_key="num_shared_experts")

    biased = config.boolean("attention_bias", False)
    return _stack(
        reading,
        "hy_v3",
        lambda _: attention,
        feed_forward,
        qkv_biased=biased,
        output_biased=biased,
        vectors=2 * attention.key_dim,
        mtp_layers=config.integer("num_nextn_predict_layers", 0),
    )


def bailing_moe_v2(reading: Reading) -> Architecture:
    """Ling and Ring 2.0. Their checkpoints say `bailing_moe`, as does the first generation, which differs."""
    config = reading.config
    if "BailingMoeForCausalLM" in (config.values.get("architectures") or ()):
        raise ArchitectureError(f"{config.origin}: the first generation of Ling is not read, only Ling and Ring 2.0")
    attention, dense_prefix = plain_attention(config), config.integer("first_k_dense_replace")

    def feed_forward(make: LayerBuilder, index: int) -> Block:
        if index < dense_prefix:
            return make.gated_mlp("mlp", config.positive("intermediate_size")), None
        return (), with_shared(make, config, "num_experts", name="mlp", shared_key="num_shared_experts")

    return _stack(
        reading,
        "bailing_moe_v2",
        lambda _: attention,
        feed_forward,
        qkv_biased=config.boolean("use_qkv_bias", False),
        output_biased=config.boolean("use_bias", False),
        vectors=2 * attention.key_dim if config.boolean("use_qk_norm") else 0,
        mtp_layers=config.integer("num_nextn_predict_layers", 0),
    )


def minimax_m2(reading: Reading) -> Architecture:
    config = reading.config
    attention = plain_attention(config)

    def feed_forward(make: LayerBuilder, index: int) -> Block:
        del index
        return (), make.experts(
            pool(config, "num_local_experts"),
            name="block_sparse_moe.experts",
            router="block_sparse_moe.gate",
            intermediate=config.positive("intermediate_size"),
        )

    # The norm of q and k runs over all heads at once.
    norms = (attention.heads + attention.kv_heads) * attention.key_dim if config.boolean("use_qk_norm", True) else 0
    mtp = config.integer("num_mtp_modules", 0) if config.boolean("use_mtp", False) else 0
    return _stack(reading, "minimax_m2", lambda _: attention, feed_forward, vectors=norms, mtp_layers=mtp)


def minimax_m3(reading: Reading) -> Architecture:
    """Dense attention and MLP in the first layers, block-sparse attention and experts in the rest."""
    config = reading.config
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    sparse = config.section("sparse_attention_config")
    uses_selection = sparse.per_layer("sparse_attention_freq", layers)
    uses_experts = config.per_layer("moe_layer_freq", layers)
    dense_attention = plain_attention(config)
    selection = BlockSelection(
        index_heads=sparse.positive("sparse_num_index_heads"),
        index_dim=sparse.positive("sparse_index_dim"),
        block_tokens=sparse.positive("sparse_block_size"),
        top_blocks=sparse.positive("sparse_topk_blocks"),
    )
    sparse_attention = GroupedAttention(
        heads=dense_attention.heads,
        kv_heads=dense_attention.kv_heads,
        key_dim=dense_attention.key_dim,
        value_dim=dense_attention.value_dim,
        selection=selection,
    )

    def layer(make: LayerBuilder, *, selects: bool, routes: bool) -> Layer:
        projections = make.grouped_projections(dense_attention)
        vectors = 2 * hidden + 2 * dense_attention.key_dim
        if selects:
            projections += (
                make.columns(
                    "self_attn.index_q_proj",
                    selection.index_heads * selection.index_dim,
                    units=selection.index_heads,
                ),
                make.whole("self_attn.index_k_proj", selection.index_dim),
            )
            vectors += 2 * selection.index_dim
        block = None
        if routes:
            shared = config.positive("n_shared_experts") * config.positive("shared_intermediate_size")
            block = make.experts(
                pool(config, "num_local_experts", shared=config.positive("n_shared_experts")),
                name="block_sparse_moe.experts",
                router="block_sparse_moe.gate",
                intermediate=config.positive("intermediate_size"),
                shared=make.gated_mlp("block_sparse_moe.shared_experts", shared),
            )
        return Layer(
            attention=sparse_attention if selects else dense_attention,
            projections=projections,
            dense=() if routes else make.gated_mlp("mlp", config.positive("dense_intermediate_size")),
            experts=block,
            vector_parameters=vectors,
        )

    stack = [
        layer(builder(reading, i, hidden), selects=bool(uses_selection[i]), routes=bool(uses_experts[i]))
        for i in range(layers)
    ]
    mtp = [layer(mtp_builder(reading, hidden, index=layers), selects=True, routes=True)]
    return model(
        reading,
        family="minimax_m3",
        hidden=hidden,
        layers=stack,
        tied_default=False,
        draft_layers=mtp if config.integer("num_mtp_modules", 0) else [],
    )


def gpt_oss(reading: Reading) -> Architecture:
    config = reading.config
    layers = config.layer_count()
    alternating = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    window_of = windows(config, layers, alternating)
    heads = config.positive("num_attention_heads")

    def feed_forward(make: LayerBuilder, index: int) -> Block:
        del index
        intermediate = config.positive("intermediate_size")
        return (), make.experts(
            pool(config, "num_local_experts"),
            name="mlp.experts",
            router="mlp.router",
            router_biased=True,
            intermediate=intermediate,
            expert=make.expert("mlp.experts", intermediate, biased=True),
        )

    return _stack(
        reading,
        "gpt_oss",
        lambda i: plain_attention(config, window=window_of[i]),
        feed_forward,
        qkv_biased=True,
        output_biased=True,
        vectors=heads,  # one attention sink per head
    )


def cohere2_moe(reading: Reading) -> Architecture:
    """Command A+ and North Mini: attention and experts in parallel behind one norm."""
    config = reading.config
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    dense_prefix = config.integer("first_k_dense_replace", 0)
    window_of = windows(config, layers, _cohere_pattern(config, layers, dense_prefix))
    intermediate = config.positive("intermediate_size")
    shared = config.integer("num_shared_experts", 0)
    biased = config.boolean("attention_bias", False)

    def layer(index: int) -> Layer:
        make = builder(reading, index, hidden)
        attention = plain_attention(config, window=window_of[index])
        block = make.experts(
            pool(config, "num_experts", shared=shared),
            name="mlp.experts",
            router="mlp.gate",
            intermediate=intermediate,
            shared=make.gated_mlp("mlp.shared_experts", shared * intermediate) if shared else (),
        )
        is_dense = index < dense_prefix
        prefix = config.positive("prefix_dense_intermediate_size", intermediate)
        return Layer(
            attention=attention,
            projections=make.grouped_projections(attention, biased=biased, output_biased=biased),
            dense=make.gated_mlp("mlp", prefix) if is_dense else (),
            experts=None if is_dense else block,
            vector_parameters=hidden,
        )

    stack = [layer(i) for i in range(layers)]
    return model(reading, family="cohere2_moe", hidden=hidden, layers=stack, tied_default=True)


def _cohere_pattern(config: Config, layers: int, dense_prefix: int) -> list[str]:
    def kinds(count: int, every: int) -> list[str]:
        return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)]

    prefix = kinds(dense_prefix, config.positive("prefix_dense_sliding_window_pattern", 1))
    return prefix + kinds(layers - dense_prefix, config.positive("sliding_window_pattern", 4))


def with_shared(
    make: LayerBuilder, config: Config, experts_key: str, *, name: str, shared_key: str = "n_shared_experts"
) -> ExpertBlock:
    """DeepSeek's arrangement, which GLM and Kimi follow: shared experts are one wide MLP beside the routed ones."""
    intermediate, shared = config.positive("moe_intermediate_size"), config.integer(shared_key, 0)
    return make.experts(
        pool(config, experts_key, shared=shared),
        name=f"{name}.experts",
        router=f"{name}.gate",
        intermediate=intermediate,
        shared=make.gated_mlp(f"{name}.shared_experts", shared * intermediate) if shared else (),
    )


def _stack(
    reading: Reading,
    family: str,
    attention_of: Callable[[int], GroupedAttention],
    feed_forward: Callable[[LayerBuilder, int], Block],
    *,
    qkv_biased: bool = False,
    output_biased: bool = False,
    vectors: int = 0,
    mtp_layers: int = 0,
) -> Architecture:
    """Norm, attention, norm, feed-forward: `vectors` counts what a layer has besides the two norms."""
    hidden, layers = reading.config.positive("hidden_size"), reading.config.layer_count()

    def layer(make: LayerBuilder, index: int) -> Layer:
        attention = attention_of(index)
        dense, experts = feed_forward(make, index)
        return Layer(
            attention=attention,
            projections=make.grouped_projections(attention, biased=qkv_biased, output_biased=output_biased),
            dense=dense,
            experts=experts,
            vector_parameters=2 * hidden + vectors,
        )

    return model(
        reading,
        family=family,
        hidden=hidden,
        layers=[layer(builder(reading, i, hidden), i) for i in range(layers)],
        tied_default=False,
        draft_layers=[layer(mtp_builder(reading, hidden, index=layers), layers - 1)] if mtp_layers else [],
    )
