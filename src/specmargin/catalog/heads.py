"""Draft heads: EAGLE-3, DFlash, DSpark and Gemma 4's assistants; published shapes, your own, or a typical one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Mixer, plain_attention, vocabulary_matrix
from specmargin.architecture.families.deepseek import latent_attention, latent_mixer
from specmargin.architecture.families.windowed import gemma4_attention
from specmargin.architecture.precision import BF16, Precision
from specmargin.architecture.quantization import QuantizationScheme, all_weights, unquantized
from specmargin.architecture.types import Architecture, DraftHead, Layer, Matrix, grouped
from specmargin.catalog.bundled import read_bundled
from specmargin.errors import ArchitectureError, ScenarioError
from specmargin.files import read_json
from specmargin.sources import Source, assumed, published

_EAGLE_VOCABULARY = 32_000
_SLIDING = "sliding_attention"
_DSPARK = {"block_size": 7, "markov_rank": 256}
_DSPARK_SOURCE = "block of 7 and Markov head of rank 256, as in the published DSpark heads of Qwen3 (DeepSpec, 2026)"
_DFLASH_2 = ("convolution_outputs", "selector_rank")


@cache
def _published() -> dict[str, dict[str, dict[str, Any]]]:
    heads: dict[str, dict[str, dict[str, Any]]] = read_bundled("heads.toml")
    return heads


def _shape(kind: str, target: Architecture) -> dict[str, Any] | None:
    """The published head of this kind for the target; None where none is bundled."""
    return _published()[kind].get(target.name)


def _origin(shape: Mapping[str, Any]) -> Source:
    """Of a configuration that was read, or of a shape that its published size confirms."""
    return (assumed if shape.get("derived") else published)(shape["source"])


def assistant_head(target: Architecture) -> DraftHead | None:
    """Gemma 4's assistant, which the publisher calls its MTP drafter; None for other models."""
    shape = _shape("mtp", target)
    return (
        None
        if shape is None
        else _assistant(Config(origin=f"assistant of {target.name}", values=shape), _origin(shape))
    )


def shaped_head(kind: str, shape: Mapping[str, Any], source: Source, target: Architecture) -> DraftHead:
    """A head of this shape, as an entry of the catalog states it."""
    config = Config(origin=f"{kind} head", values={"hidden_size": target.hidden, **shape})
    match kind:
        case "mtp":
            return _assistant(config, source)
        case "eagle":
            return _eagle(config, source, target)
        case "dflash":
            return _block_head("dflash", config, source, target)
        case _:
            return _dspark(config, source, target)


def _assistant(config: Config, source: Source) -> DraftHead:
    """Layers of q and o alone: each reads the keys and values of the target's last layer of its kind. In between, the
    hidden state is as wide as the target's (vLLM 0.33, model_executor/models/gemma4_mtp.py; llama.cpp pull request
    23398), and the LM head is its own.
    """
    hidden, backbone = config.positive("hidden_size"), config.positive("backbone_hidden_size")
    make = LayerBuilder(prefix="assistant", scheme=unquantized(BF16), hidden=hidden)

    def layer(kind: str) -> Layer:
        attention = gemma4_attention(config, local=kind == _SLIDING)
        queries, *_, output = make.grouped(attention).projections
        mixer = Mixer(attention, (queries, output), attention.key_dim)
        return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")), norms=4)

    kinds = config.kinds("layer_types", config.layer_count(), ("full_attention", _SLIDING))
    joined = make.whole("pre_projection", hidden, inputs=2 * backbone)
    return DraftHead(
        name="mtp",
        groups=grouped([layer(kind) for kind in kinds]),
        fusion=(joined, make.whole("post_projection", backbone)),
        lm_head=vocabulary_matrix("lm_head", hidden, config.positive("vocab_size"), BF16),
        shares_lm_head=False,
        shares_kv=True,
        checkpoint=str(config.values.get("checkpoint", "")),
        vector_parameters=hidden,
        source=source,
    )


def eagle_head(path: str, target: Architecture) -> DraftHead:
    """EAGLE-3: three hidden states fused (3h -> h), one layer that also sees the embedding, a reduced vocabulary."""
    return _eagle(*_head_config(path, "EAGLE", target, *_eagle_shape(target)), target)


def _eagle(config: Config, source: Source, target: Architecture) -> DraftHead:
    hidden = config.positive("hidden_size")
    make = LayerBuilder(prefix="eagle", scheme=unquantized(BF16), hidden=hidden)
    layer = make.layer(_eagle_mixer(make, config), make.gated_mlp("mlp", config.positive("intermediate_size")), norms=3)
    vocabulary = config.optional_integer("draft_vocab_size") or config.positive("vocab_size")
    return DraftHead(
        name="eagle",
        groups=grouped([layer]),
        fusion=(make.whole("fc", hidden, inputs=3 * target.hidden),),
        lm_head=vocabulary_matrix("lm_head", hidden, vocabulary, BF16),
        shares_lm_head=False,
        checkpoint=str(config.values.get("checkpoint", "")),
        vector_parameters=hidden,
        source=source,
    )


def _eagle_shape(target: Architecture) -> tuple[Mapping[str, Any], Source]:
    shape = _shape("eagle", target)
    if shape is not None:
        return shape, _origin(shape)
    kv_heads = max(target.hidden // 512, 1)
    typical = {
        "num_attention_heads": 4 * kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "intermediate_size": 4 * target.hidden,
        "draft_vocab_size": min(_EAGLE_VOCABULARY, target.vocabulary),
    }
    return typical, assumed("an EAGLE-3 head of typical shape: one layer as wide as the target, 32k draft vocabulary")


def _eagle_mixer(make: LayerBuilder, config: Config) -> Mixer:
    """Embedding and hidden state come in side by side; MLA where the head has latents."""
    if not config.has("kv_lora_rank"):
        return make.grouped(plain_attention(config), inputs=2 * make.hidden)
    mixer = latent_mixer(make, config, latent_attention(config))
    wide = tuple(replace(m, inputs=2 * m.inputs) if m.fused == "qkv_a" else m for m in mixer.projections)
    return mixer._replace(projections=wide)


def dflash_head(path: str, target: Architecture) -> DraftHead:
    """DFlash: a few dense layers that fill a whole block in one pass, and the target's LM head."""
    return _block_head("dflash", *_head_config(path, "DFlash", target, *_dflash_shape(target)), target)


def dspark_head(path: str, target: Architecture) -> DraftHead:
    """DSpark: a DFlash head whose first position drafts too, with a Markov head and a confidence head; the one in the
    target's checkpoint where there is one.

    The Markov head adds W2 W1[previous token] to the logits of each token in turn: W2 is read once per token. Layers,
    rank and block are read where SGLang reads them (dspark_components/dspark_config.py and models/dspark.py, 0.5.23).
    """
    if target.block_head is not None and not path:
        return target.block_head
    layers, layers_source = _dflash_shape(target)
    shape = {key: value for key, value in layers.items() if key not in (*_DFLASH_2, "checkpoint")} | _DSPARK
    origin = f"layers as in: {layers_source.detail}; {_DSPARK_SOURCE}"
    config, source = _head_config(path, "DSpark", target, shape, assumed(origin))
    if "dspark_block_size" in config.values:
        raise ArchitectureError(
            f"{config.origin}: a DSpark head inside its target's checkpoint; give the checkpoint as the model instead"
        )
    return _dspark(config, source, target)


def _dspark(config: Config, source: Source, target: Architecture) -> DraftHead:
    head, rank = _block_head("dspark", config, source, target), _block_values(config).positive("markov_rank")
    confidence = head.lm_head.inputs + rank + 1
    return replace(
        head,
        anchored=bool(config.values.get("sample_from_anchor", True)),
        serial=(vocabulary_matrix("markov_w2", rank, target.vocabulary, BF16),),
        lookups=(vocabulary_matrix("markov_w1", rank, target.vocabulary, BF16),),
        vector_parameters=head.vector_parameters + confidence,
    )


def _dflash_shape(target: Architecture) -> tuple[Mapping[str, Any], Source]:
    """The published head, or the shape that most published ones have: 5 layers of 32 heads over 8 KV heads."""
    shape = _shape("dflash", target)
    if shape is not None:
        return shape, _origin(shape)
    typical = {
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3 * target.hidden,
        "block_size": 16,
        "target_layers": 5,
    }
    count = len(_published()["dflash"])
    return typical, assumed(f"a DFlash head of the shape that most of {count} published ones have: 5 layers, block 16")


def _block_values(config: Config) -> Config:
    """With the values that checkpoints nest in sections of their own, the last one first."""
    nested = [config.values.get(name) or {} for name in ("dflash_config", "dspark_config")]
    return Config(origin=config.origin, values={**config.values, **nested[0], **nested[1]})


def _block_head(name: str, config: Config, source: Source, target: Architecture) -> DraftHead:
    config = _block_values(config)
    fused = len(config.values.get("target_layer_ids") or ()) or config.positive("target_layers")
    hidden, layers = config.positive("hidden_size"), config.positive("num_hidden_layers")
    make = LayerBuilder(prefix=name, scheme=unquantized(BF16), hidden=hidden)
    kinds = config.kinds("layer_types", layers, ("full_attention", _SLIDING), ["full_attention"] * layers)
    fusion = [make.whole("fc", hidden, inputs=fused * target.hidden)]
    rank = config.integer("selector_rank", 0)
    if rank:  # DFlash 2: paths through the block are scored with two codebooks, of which few rows are read
        fusion.append(make.whole("selector.hidden_projection", rank))
    books = (vocabulary_matrix("codebook", rank, target.vocabulary, BF16),) * 2 if rank else ()
    return DraftHead(
        name=name,
        groups=grouped([_block_layer(make, config, kind) for kind in kinds]),
        fusion=tuple(fusion),
        lm_head=target.lm_head,
        shares_lm_head=True,
        block=config.positive("block_size"),
        lookups=books,
        checkpoint=str(config.values.get("checkpoint", "")),
        vector_parameters=2 * hidden,
        source=source,
    )


def _block_layer(make: LayerBuilder, config: Config, kind: str) -> Layer:
    attention = plain_attention(config, window=config.positive("sliding_window") if kind == _SLIDING else None)
    mixer = make.grouped(attention, vectors=2 * attention.key_dim)
    kernel = config.integer("convolution_outputs", 0)
    if kernel:  # DFlash 2: the weights of a short convolution before attention and before the MLP
        names = ("attention_conv.kernel_projection", "mlp_conv.kernel_projection")
        mixer = mixer._replace(projections=(*mixer.projections, *(make.whole(name, kernel) for name in names)))
    return make.layer(mixer, make.gated_mlp("mlp", config.positive("intermediate_size")))


def stored(
    runs: DraftHead | Architecture, *, weights: Precision | None = None, vocabulary: int | None = None
) -> DraftHead | Architecture:
    """The drafter with its linear layers in another format, and with an LM head that scores fewer tokens.

    A draft model is read in its format (`find_model`), a head's matrices are changed here: its layers and projections,
    and its own LM head where the format has one for it (llama.cpp's). A reduced LM head is a copy of some rows.
    """
    if weights is not None and isinstance(runs, DraftHead):
        runs = _requantized(runs, all_weights(weights))
    if vocabulary is None:
        return runs
    if vocabulary > runs.lm_head.outputs:
        raise ScenarioError(f"--draft-vocabulary {vocabulary} is larger than the drafter's own, {runs.lm_head.outputs}")
    reduced = replace(runs.lm_head, outputs=vocabulary, split_units=vocabulary)
    if isinstance(runs, DraftHead):
        return replace(runs, lm_head=reduced, shares_lm_head=False)
    return replace(runs, lm_head=reduced)


def _requantized(head: DraftHead, scheme: QuantizationScheme) -> DraftHead:
    def linear(matrices: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
        return tuple(replace(matrix, precision=scheme.of_linear(matrix.name)) for matrix in matrices)

    def layer(old: Layer) -> Layer:
        block = old.experts
        experts = block and replace(block, expert=linear(block.expert), always_on=linear(block.always_on))
        return replace(old, projections=linear(old.projections), dense=linear(old.dense), experts=experts)

    own = head.lm_head if head.shares_lm_head else replace(head.lm_head, precision=scheme.of_special("lm_head"))
    groups = tuple(replace(group, layer=layer(group.layer)) for group in head.groups)
    return replace(head, groups=groups, fusion=linear(head.fusion), lm_head=own)


def _head_config(
    path: str, kind: str, target: Architecture, shape: Mapping[str, Any], source: Source
) -> tuple[Config, Source]:
    """The head's own configuration at `path`; without one, this shape with its source."""
    if not path:
        return Config(origin=f"{kind} head", values={"hidden_size": target.hidden, **shape}), source
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    values: Any = read_json(file, ArchitectureError)
    if not isinstance(values, dict):
        raise ArchitectureError(f"{file}: a configuration must be a JSON object")
    return Config(origin=str(file), values=values), published(f"{file} ({kind} head configuration)")
