"""Dense decoders with grouped-query attention: Llama, Qwen2, Qwen3, Mistral, MiMo, GLM-OCR, Cohere2 (Command A),
Llama-Nemotron."""

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
)
from specmargin.architecture.types import Architecture, Layer, Matrix
from specmargin.errors import ArchitectureError


def windows(config: Config, default_pattern: list[str]) -> list[int | None]:
    """The attention window of each layer, from `layer_types`."""
    allowed = ("full_attention", "sliding_attention")
    kinds = config.kinds("layer_types", config.layer_count(), allowed, default_pattern)
    return [config.positive("sliding_window") if kind == "sliding_attention" else None for kind in kinds]


def every_nth(every: int, layers: int, others: str, nth: str = "full_attention") -> list[str]:
    """Kinds of layers: each `every`-th is `nth`."""
    return [nth if (i + 1) % every == 0 else others for i in range(layers)]


def llama(reading: Reading) -> Architecture:
    biased = reading.config.boolean("attention_bias", False)
    return _dense(reading, qkv_biased=biased, output_biased=biased)


def mistral(reading: Reading) -> Architecture:
    return _dense(reading, window=reading.config.optional_integer("sliding_window"))


def qwen2(reading: Reading) -> Architecture:
    _refuse_window(reading.config)
    return _dense(reading, qkv_biased=True)


def qwen3(reading: Reading) -> Architecture:
    _refuse_window(reading.config)
    biased = reading.config.boolean("attention_bias", False)
    return _dense(reading, qkv_biased=biased, output_biased=biased, head_norms=True)


def mimo(reading: Reading) -> Architecture:
    _refuse_window(reading.config)
    return _dense(reading, qkv_biased=reading.config.boolean("attention_bias", True))


def glm_ocr(reading: Reading) -> Architecture:
    """A norm before and after attention and MLP; the MTP layer is the one after the last (vLLM's glm_ocr_mtp.py)."""
    config = reading.config
    biased = config.boolean("attention_bias", False)

    def layer(make: LayerBuilder, _: int) -> Layer:
        mixer = make.grouped(plain_attention(config), biased=biased)
        return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")), norms=4)

    return decoder(reading, layer, draft_layers=mtp_layers(config))


def cohere2(reading: Reading) -> Architecture:
    """Parallel attention and MLP behind one norm; three sliding layers to each full one."""
    config = reading.config
    every = config.positive("sliding_window_pattern", 4)
    window_of = windows(config, every_nth(every, config.layer_count(), "sliding_attention"))
    biased = config.boolean("attention_bias", False)

    def layer(make: LayerBuilder, index: int) -> Layer:
        mixer = make.grouped(plain_attention(config, window=window_of[index]), biased=biased, output_biased=biased)
        return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")), norms=1)

    return decoder(reading, layer, tied_default=True)


def nemotron_nas(reading: Reading) -> Architecture:
    """Llama-Nemotron Super and Ultra: Llama layers pruned one by one, some without attention or without an MLP
    (vLLM 0.33, model_executor/models/nemotron_nas.py)."""
    config = reading.config
    blocks = config.per_layer("block_configs", config.layer_count())
    heads, hidden = config.positive("num_attention_heads"), reading.hidden

    def section(index: int, name: str) -> Config:
        part = Config(origin=f"{config.origin}: block_configs[{index}]", values=blocks[index]).section(name)
        if part.boolean("replace_with_linear", False):
            raise ArchitectureError(f"{part.origin}: a part that is replaced by a linear layer is not read")
        return part

    def layer(make: LayerBuilder, index: int) -> Layer:
        attends, multiplies = section(index, "attention"), section(index, "ffn")
        mlp: tuple[Matrix, ...] = ()
        if not multiplies.boolean("no_op", False):
            mlp = make.gated_mlp("mlp", _multiple(int(2 * multiplies.number("ffn_mult") * hidden / 3), 256))
        if attends.boolean("no_op", False):
            return Layer(attention=None, dense=mlp, vector_parameters=hidden if mlp else 0)
        kv_heads = heads // attends.positive("n_heads_in_group")
        attention = replace(
            plain_attention(config), kv_heads=kv_heads, window=attends.optional_integer("window_length")
        )
        return make.layer(make.grouped(attention), mlp, norms=2 if mlp else 1)

    return decoder(reading, layer)


def _multiple(number: int, of: int) -> int:
    """The next multiple, upwards."""
    return -(-number // of) * of


def _refuse_window(config: Config) -> None:
    if config.boolean("use_sliding_window", False):
        raise ArchitectureError(f"{config.origin}: use_sliding_window in a Qwen-style model is not read yet")


def _dense(
    reading: Reading,
    *,
    qkv_biased: bool = False,
    output_biased: bool = False,
    head_norms: bool = False,
    window: int | None = None,
) -> Architecture:
    """`head_norms`: q and k are normalised by head."""
    config = reading.config
    attention = plain_attention(config, window=window)
    vectors = 2 * attention.key_dim if head_norms else 0

    def layer(make: LayerBuilder, _: int) -> Layer:
        mixer = make.grouped(attention, biased=qkv_biased, output_biased=output_biased, vectors=vectors)
        return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")))

    return decoder(reading, layer, draft_layers=mtp_layers(config), draft_module=MTP_MODULE)
