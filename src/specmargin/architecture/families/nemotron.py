"""Nemotron-H and Nemotron 3: each layer is a Mamba-2 mixer, attention, an MLP or experts, exactly one of them."""

from __future__ import annotations

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import (
    MTP_MODULE,
    LayerBuilder,
    Mixer,
    Reading,
    decoder,
    mtp_layers,
    pool,
)
from specmargin.architecture.precision import precision_of_dtype
from specmargin.architecture.types import Architecture, ExpertBlock, GroupedAttention, Layer, LinearAttention
from specmargin.errors import ArchitectureError

_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def nemotron_h(reading: Reading) -> Architecture:
    config = reading.config
    kinds = block_pattern(config, "layers_block_type", "hybrid_override_pattern")
    if not kinds:
        raise ArchitectureError(f"{config.origin}: needs 'layers_block_type' or 'hybrid_override_pattern'")
    mtp = block_pattern(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern") if mtp_layers(config) else []
    return decoder(
        reading,
        lambda make, index: block_layer(make, config, [*kinds, *mtp][index]),
        layers=len(kinds),
        draft_layers=len(mtp),
        draft_module=MTP_MODULE,
    )


def block_pattern(config: Config, list_key: str, text_key: str) -> list[str]:
    if config.has(list_key):
        return list(config.values[list_key])
    letters = config.text(text_key, "")
    unknown = sorted(set(letters) - set(_LETTERS))
    if unknown:
        raise ArchitectureError(f"{config.origin}: {text_key!r} has unknown layer kinds {unknown}")
    return [_LETTERS[letter] for letter in letters]


def block_layer(make: LayerBuilder, config: Config, kind: str) -> Layer:
    match kind:
        case "mamba":
            return _mamba(make, config)
        case "attention":
            return _attention(make, config)
        case "moe":
            return Layer(attention=None, experts=_experts(make, config), vector_parameters=make.hidden)
        case "mlp":
            dense = make.plain_mlp("mixer", config.positive("intermediate_size"))
            return Layer(attention=None, dense=dense, vector_parameters=make.hidden)
        case _:
            raise ArchitectureError(f"{config.origin}: unknown layer kind {kind!r}")


def _mamba(make: LayerBuilder, config: Config) -> Layer:
    heads, dim = config.positive("mamba_num_heads"), config.positive("mamba_head_dim")
    state, groups, kernel = (
        config.positive("ssm_state_size"),
        config.positive("n_groups"),
        config.positive("conv_kernel"),
    )
    inner = heads * dim
    channels = inner + 2 * groups * state
    attention = LinearAttention(
        kind="mamba2",
        heads=heads,
        state_elements=heads * dim * state,
        convolution_elements=channels * (kernel - 1),
        state_precision=precision_of_dtype(config.text("mamba_ssm_cache_dtype", "float32")),
        flops_per_position=6.0 * heads * dim * state,  # decay, outer product and read of the state
    )
    projections = (
        make.columns("mixer.in_proj", inner + channels + heads, units=heads),
        make.rows("mixer.out_proj", inner, units=heads),
    )
    convolution = channels * (kernel + config.boolean("use_conv_bias", True))
    return make.layer(Mixer(attention, projections, convolution + 3 * heads + inner), (), norms=1)


def _attention(make: LayerBuilder, config: Config) -> Layer:
    dim = config.optional_integer("head_dim") or config.positive("attention_head_dim")
    attention = GroupedAttention(
        heads=config.positive("num_attention_heads"),
        kv_heads=config.positive("num_key_value_heads"),
        key_dim=dim,
        value_dim=dim,
    )
    return make.layer(make.grouped(attention, name="mixer"), (), norms=1)


def _experts(make: LayerBuilder, config: Config) -> ExpertBlock:
    """Squared-ReLU experts (two matrices each), in a narrower latent space in the larger models."""
    latent = config.optional_integer("moe_latent_size")
    always_on = make.plain_mlp("mixer.shared_experts", config.positive("moe_shared_expert_intermediate_size"))
    if latent:
        down = make.whole("mixer.fc1_latent_proj", latent)
        up = make.whole("mixer.fc2_latent_proj", make.hidden, inputs=latent)
        always_on = (*always_on, down, up)
    return make.experts(
        pool(config, "n_routed_experts", shared=config.integer("n_shared_experts", 0)),
        make.expert("mixer.experts", config.positive("moe_intermediate_size"), gated=False, width=latent),
        router="mixer.gate",
        shared=always_on,
    )
