"""Dense decoders with grouped-query attention: Llama, Qwen2, Qwen3, Mistral, MiMo, Cohere2 (Command A)."""

from __future__ import annotations

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Reading, builder, model, mtp_builder
from specmargin.architecture.types import Architecture, GroupedAttention, Layer
from specmargin.errors import ArchitectureError


def plain_attention(config: Config, *, window: int | None = None) -> GroupedAttention:
    """Attention as most configurations spell it."""
    heads = config.positive("num_attention_heads")
    head_dim = config.optional_integer("head_dim") or config.positive("hidden_size") // heads
    return GroupedAttention(
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", heads),
        key_dim=head_dim,
        value_dim=head_dim,
        window=window,
    )


def windows(config: Config, layers: int, default_pattern: list[str] | None = None) -> list[int | None]:
    """The attention window of each layer, from `layer_types`."""
    allowed = ("full_attention", "sliding_attention")
    kinds = config.kinds("layer_types", layers, allowed, default_pattern or ["full_attention"] * layers)
    return [config.positive("sliding_window") if kind == "sliding_attention" else None for kind in kinds]


def llama(reading: Reading) -> Architecture:
    biased = reading.config.boolean("attention_bias", False)
    return _decoder(reading, family="llama", qkv_biased=biased, output_biased=biased)


def mistral(reading: Reading) -> Architecture:
    window = reading.config.optional_integer("sliding_window")
    return _decoder(reading, family="mistral", window=window)


def qwen2(reading: Reading) -> Architecture:
    _refuse_window(reading.config)
    return _decoder(reading, family="qwen2", qkv_biased=True)


def qwen3(reading: Reading) -> Architecture:
    _refuse_window(reading.config)
    biased = reading.config.boolean("attention_bias", False)
    return _decoder(reading, family="qwen3", qkv_biased=biased, output_biased=biased, qk_norm=True)


def mimo(reading: Reading) -> Architecture:
    _refuse_window(reading.config)
    return _decoder(reading, family="mimo", qkv_biased=reading.config.boolean("attention_bias", True))


def cohere2(reading: Reading) -> Architecture:
    """Parallel attention and MLP behind one norm; three sliding layers to each full one."""
    config = reading.config
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    every = config.positive("sliding_window_pattern", 4)
    pattern = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    biased = config.boolean("attention_bias", False)

    def layer(index: int, window: int | None) -> Layer:
        make = builder(reading, index, hidden)
        attention = plain_attention(config, window=window)
        return Layer(
            attention=attention,
            projections=make.grouped_projections(attention, biased=biased, output_biased=biased),
            dense=make.gated_mlp("mlp", config.positive("intermediate_size")),
            vector_parameters=hidden,
        )

    stack = [layer(i, window) for i, window in enumerate(windows(config, layers, pattern))]
    return model(reading, family="cohere2", hidden=hidden, layers=stack, tied_default=True)


def _refuse_window(config: Config) -> None:
    if config.boolean("use_sliding_window", False):
        raise ArchitectureError(f"{config.origin}: use_sliding_window in a Qwen-style model is not read yet")


def _decoder(
    reading: Reading,
    *,
    family: str,
    qkv_biased: bool = False,
    output_biased: bool = False,
    qk_norm: bool = False,
    window: int | None = None,
) -> Architecture:
    config = reading.config
    hidden = config.positive("hidden_size")
    attention = plain_attention(config, window=window)
    vectors = 2 * hidden + (2 * attention.key_dim if qk_norm else 0)

    def layer(make: LayerBuilder) -> Layer:
        return Layer(
            attention=attention,
            projections=make.grouped_projections(attention, biased=qkv_biased, output_biased=output_biased),
            dense=make.gated_mlp("mlp", config.positive("intermediate_size")),
            vector_parameters=vectors,
        )

    mtp = config.integer("num_nextn_predict_layers", 0)
    return model(
        reading,
        family=family,
        hidden=hidden,
        layers=[layer(builder(reading, i, hidden)) for i in range(config.layer_count())],
        tied_default=False,
        draft_layers=[layer(mtp_builder(reading, hidden))] if mtp else [],
    )
