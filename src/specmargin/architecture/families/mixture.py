"""Mixtures of experts on grouped-query attention: Mixtral, Qwen3-MoE, GLM-4.5 to 4.7, Hy3, Ling, MiniMax, gpt-oss,
Cohere MoE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import (
    LayerBuilder,
    Reading,
    decoder,
    mtp_layers,
    plain_attention,
    routed,
)
from specmargin.architecture.families.dense import every_nth, windows
from specmargin.architecture.types import (
    Architecture,
    BlockSelection,
    ExpertBlock,
    GroupedAttention,
    Layer,
)
from specmargin.errors import ArchitectureError

Experts = Callable[[LayerBuilder], ExpertBlock]


def mixtral(reading: Reading) -> Architecture:
    config = reading.config
    attention = plain_attention(config, window=config.optional_integer("sliding_window"))
    return _mixture(reading, attention, _sparse_block(config))


def qwen3_moe(reading: Reading) -> Architecture:
    config = reading.config
    attention = plain_attention(config)
    dense_layers = config.layer_indices("mlp_only_layers") or frozenset()
    step = config.positive("decoder_sparse_step", 1)
    renamed = config.has("num_local_experts") and not config.has("num_experts")  # as Transformers 5 writes it
    key = "num_local_experts" if renamed else "num_experts"
    return _mixture(
        reading,
        attention,
        lambda make: routed(make, config, key),
        is_dense=lambda index: index in dense_layers or (index + 1) % step > 0,
        vectors=2 * attention.key_dim,
    )


def glm4_moe(reading: Reading) -> Architecture:
    """GLM-4.5, 4.6 and 4.7: leading dense layers, then experts with one shared beside them, and an MTP layer."""
    config = reading.config
    attention, dense_prefix = plain_attention(config), config.integer("first_k_dense_replace")
    return _mixture(
        reading,
        attention,
        lambda make: routed(make, config, "n_routed_experts", shared="n_shared_experts"),
        is_dense=lambda index: index < dense_prefix,
        qkv_biased=config.boolean("attention_bias"),
        vectors=2 * attention.key_dim if config.boolean("use_qk_norm", False) else 0,
        draft_layers=mtp_layers(config),
    )


def hy_v3(reading: Reading) -> Architecture:
    """Tencent Hy3: a dense first layer, then experts with one shared beside them, q and k normalised by head."""
    config = reading.config
    attention, layers = plain_attention(config), config.layer_count()
    default = ["dense", *["sparse"] * (layers - 1)]
    kinds = [*config.kinds("mlp_layer_types", layers, ("dense", "sparse"), default), "sparse"]
    biased = config.boolean("attention_bias", False)
    return _mixture(
        reading,
        attention,
        lambda make: routed(make, config, "num_experts", shared="num_shared_experts"),
        is_dense=lambda index: kinds[index] == "dense",
        qkv_biased=biased,
        output_biased=biased,
        vectors=2 * attention.key_dim,
        draft_layers=mtp_layers(config),
    )


def bailing_moe_v2(reading: Reading) -> Architecture:
    """Ling and Ring 2.0. Their checkpoints say `bailing_moe`, as does the first generation, which differs."""
    config = reading.config
    if "BailingMoeForCausalLM" in (config.values.get("architectures") or ()):
        raise ArchitectureError(f"{config.origin}: the first generation of Ling is not read, only Ling and Ring 2.0")
    attention, dense_prefix = plain_attention(config), config.integer("first_k_dense_replace")
    return _mixture(
        reading,
        attention,
        lambda make: routed(make, config, "num_experts", shared="num_shared_experts"),
        is_dense=lambda index: index < dense_prefix,
        qkv_biased=config.boolean("use_qkv_bias", False),
        output_biased=config.boolean("use_bias", False),
        vectors=2 * attention.key_dim if config.boolean("use_qk_norm") else 0,
        draft_layers=mtp_layers(config),
    )


def minimax_m2(reading: Reading) -> Architecture:
    config = reading.config
    attention = plain_attention(config)
    # The norm of q and k runs over all heads at once.
    norms = (attention.heads + attention.kv_heads) * attention.key_dim if config.boolean("use_qk_norm", True) else 0
    mtp = mtp_layers(config, "num_mtp_modules") if config.boolean("use_mtp", False) else 0
    return _mixture(reading, attention, _sparse_block(config), vectors=norms, draft_layers=mtp)


def _sparse_block(config: Config) -> Experts:
    """Mixtral's arrangement, which MiniMax follows."""
    return lambda make: routed(make, config, "num_local_experts", width="intermediate_size", module="block_sparse_moe")


def minimax_m3(reading: Reading) -> Architecture:
    """Dense attention and MLP in the first layers, block-sparse attention and experts in the rest."""
    config = reading.config
    layers = config.layer_count()
    sparse = config.section("sparse_attention_config")
    selects = [*sparse.per_layer("sparse_attention_freq", layers), True]
    routes = [*config.per_layer("moe_layer_freq", layers), True]
    attention = plain_attention(config)
    selection = BlockSelection(
        index_heads=sparse.positive("sparse_num_index_heads"),
        index_dim=sparse.positive("sparse_index_dim"),
        block_tokens=sparse.positive("sparse_block_size"),
        top_blocks=sparse.positive("sparse_topk_blocks"),
    )

    def layer(make: LayerBuilder, index: int) -> Layer:
        mixer = make.grouped(attention, vectors=2 * attention.key_dim)
        if selects[index]:
            heads, dim = selection.index_heads, selection.index_dim
            queries = make.columns("self_attn.index_q_proj", heads * dim, units=heads)
            mixer = mixer._replace(
                attention=replace(attention, selection=selection),
                projections=(*mixer.projections, queries, make.whole("self_attn.index_k_proj", dim)),
                vectors=mixer.vectors + 2 * dim,
            )
        if not routes[index]:
            return make.layer(mixer, make.gated_mlp("mlp", config.positive("dense_intermediate_size")))
        return make.layer(mixer, _experts_with_shared(make, config))

    return decoder(reading, layer, draft_layers=mtp_layers(config, "num_mtp_modules"))


def _experts_with_shared(make: LayerBuilder, config: Config) -> ExpertBlock:
    """MiniMax M3: shared experts have a width of their own."""
    shared = config.positive("n_shared_experts")
    block = _sparse_block(config)(make)
    mlp = make.gated_mlp("block_sparse_moe.shared_experts", shared * config.positive("shared_intermediate_size"))
    return replace(block, pool=replace(block.pool, shared_experts=shared), always_on=mlp)


def gpt_oss(reading: Reading) -> Architecture:
    config = reading.config
    window_of = windows(config, every_nth(2, config.layer_count(), "sliding_attention"))

    def experts(make: LayerBuilder) -> ExpertBlock:
        return routed(make, config, "num_local_experts", width="intermediate_size", router="router", biased=True)

    return _mixture(
        reading,
        lambda index: replace(plain_attention(config, window=window_of[index]), sinks=True),
        experts,
        qkv_biased=True,
        output_biased=True,
        vectors=config.positive("num_attention_heads"),  # one attention sink per head
    )


def cohere2_moe(reading: Reading) -> Architecture:
    """Command A+ and North Mini: attention and experts in parallel behind one norm."""
    config = reading.config
    dense_prefix = config.integer("first_k_dense_replace", 0)
    window_of = windows(config, _cohere_pattern(config, dense_prefix))
    biased = config.boolean("attention_bias", False)
    return _mixture(
        reading,
        lambda index: plain_attention(config, window=window_of[index]),
        lambda make: routed(make, config, "num_experts", width="intermediate_size", shared="num_shared_experts"),
        is_dense=lambda index: index < dense_prefix,
        dense_width=config.positive("prefix_dense_intermediate_size", config.positive("intermediate_size")),
        qkv_biased=biased,
        output_biased=biased,
        norms=1,
        tied_default=True,
    )


def _cohere_pattern(config: Config, dense_prefix: int) -> list[str]:
    prefix = every_nth(config.positive("prefix_dense_sliding_window_pattern", 1), dense_prefix, "sliding_attention")
    rest = config.layer_count() - dense_prefix
    return prefix + every_nth(config.positive("sliding_window_pattern", 4), rest, "sliding_attention")


def _mixture(
    reading: Reading,
    attention: GroupedAttention | Callable[[int], GroupedAttention],
    experts: Experts,
    *,
    is_dense: Callable[[int], bool] = lambda _: False,
    dense_width: int | None = None,
    qkv_biased: bool = False,
    output_biased: bool = False,
    vectors: int = 0,
    norms: int = 2,
    draft_layers: int = 0,
    tied_default: bool = False,
) -> Architecture:
    """Layers with experts, except those that are dense: `vectors` counts what a layer has besides its norms."""
    config = reading.config

    def layer(make: LayerBuilder, index: int) -> Layer:
        own = attention if isinstance(attention, GroupedAttention) else attention(index)
        mixer = make.grouped(own, biased=qkv_biased, output_biased=output_biased, vectors=vectors)
        if not is_dense(index):
            return make.layer(mixer, experts(make), norms=norms)
        return make.layer(
            mixer, make.gated_mlp("mlp", dense_width or config.positive("intermediate_size")), norms=norms
        )

    return decoder(reading, layer, draft_layers=draft_layers, tied_default=tied_default)
