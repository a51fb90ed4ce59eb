"""DeepSeek V4 and V4.1: one shared KV head, a window and a compressed history, hyper-connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import (
    MTP_MODULE,
    LayerBuilder,
    Mixer,
    Reading,
    decoder,
    mtp_layers,
    routed,
    vocabulary_matrix,
)
from specmargin.architecture.families.deepseek import token_selection
from specmargin.architecture.precision import BF16, FP8, FP32, MXFP4
from specmargin.architecture.types import (
    Architecture,
    CompressedAttention,
    DraftHead,
    ExpertBlock,
    Layer,
    Matrix,
    Split,
    TokenSelection,
    grouped,
)
from specmargin.errors import ArchitectureError


def deepseek_v4(reading: Reading) -> Architecture:
    config, reading = reading.config, _with_fp4_experts(reading)
    hidden, layers = reading.hidden, config.layer_count()
    ratios = config.per_layer("compress_ratios", layers)
    if not all(isinstance(ratio, int) and ratio >= 0 for ratio in ratios):
        raise ArchitectureError(f"{config.origin}: 'compress_ratios' must list whole numbers, got {ratios}")
    streams = config.positive("hc_mult")
    config.positive("n_shared_experts")  # every V4 has them: a missing key must not read as none

    def layer(make: LayerBuilder, index: int) -> Layer:
        mixer = _mixer(make, config, _attention(config, ratios[index] if index < layers else 0))
        return connected(make.layer(mixer, _experts(make, config)), make.hidden, streams)

    built = decoder(
        reading,
        layer,
        draft_layers=0 if config.has("dspark_block_size") else mtp_layers(config),
        draft_module=MTP_MODULE,
        head_name="head",
        # The final norm, and the head that collapses the residual streams into one.
        vector_parameters=hidden + streams * streams * hidden + streams + 1,
        # The engine stores the non-positional part of a KV entry in fp8 and the rotary part in bf16.
        kv_precision=FP8,
    )
    return replace(
        built, block_head=dspark_head(reading, layer, built.lm_head, layers=config.positive("n_mtp_layers", 3))
    )


def deepseek_v41(reading: Reading) -> Architecture:
    """V4.1: few layers compress their history (by 2, or not at all) or select from it; the ones after them read those
    histories and selections (vLLM 0.33, models/deepseek_v41/attention.py and nvidia/model.py).

    The n-gram tables (197B parameters, of which a token reads 24 rows in each of two layers) are not counted: vLLM
    keeps them in host memory by default. Prompts skip the second half of the layers, which is not priced.
    """
    config, reading = reading.config, _with_fp4_experts(reading)
    layers, streams = config.layer_count(), config.positive("hc_mult")
    tables = config.layer_indices("engram_layer_ids") or frozenset()
    config.positive("n_shared_experts")

    def layer(make: LayerBuilder, index: int) -> Layer:
        mixer = _sharing_mixer(make, config, index)
        if index in tables:
            mixer = _with_table(make, config, mixer, streams)
        return connected(make.layer(mixer, _experts(make, config, drafts=index >= layers)), make.hidden, streams)

    built = decoder(reading, layer, head_name="head", kv_precision=FP8)
    drafting = config.positive("n_mtp_layers", config.positive("num_nextn_predict_layers", 3))
    return replace(built, block_head=dspark_head(reading, layer, built.lm_head, layers=drafting))


def _with_fp4_experts(reading: Reading) -> Reading:
    """`expert_dtype` is a field of the configuration (V4) or of its quantization (V4.1); --weights sets experts too."""
    quantization = reading.config.values.get("quantization_config")
    nested = quantization.get("expert_dtype") if isinstance(quantization, Mapping) else None
    if "fp4" not in (reading.config.text("expert_dtype", ""), nested) or reading.scheme.experts is not None:
        return reading
    return replace(reading, scheme=replace(reading.scheme, experts=MXFP4))


def dspark_head(
    reading: Reading, layer: Callable[[LayerBuilder, int], Layer], lm_head: Matrix, *, layers: int
) -> DraftHead | None:
    """The DSpark head in a checkpoint: layers of its own, of the target's kind but with a window alone, with experts of
    their own number in V4.1; a Markov head and a confidence head (vLLM 0.33, models/deepseek_v41/nvidia/dspark.py)."""
    config, hidden = reading.config, reading.hidden
    if not config.integer("dspark_block_size", 0):
        return None
    first, vocabulary, rank = config.layer_count(), lm_head.outputs, config.positive("dspark_markov_rank")
    targets = len(config.layer_indices("dspark_target_layer_ids") or ()) * hidden
    return DraftHead(
        name="dspark",
        groups=grouped([layer(reading.builder(f"mtp.{i}"), first + i) for i in range(layers)]),
        fusion=(reading.builder("mtp.0").whole("main_proj", hidden, inputs=targets),),
        lm_head=lm_head,
        shares_lm_head=True,
        block=config.positive("dspark_block_size"),
        anchored=True,
        serial=(vocabulary_matrix("markov_w2", rank, vocabulary, BF16),),
        lookups=(vocabulary_matrix("markov_w1", rank, vocabulary, BF16),),
        vector_parameters=3 * hidden + rank,  # two norms, and the confidence head
        source=reading.source,
    )


def _attention(config: Config, ratio: int) -> CompressedAttention:
    """Compress ratio 0: the window alone; 4: CSA, which selects; larger: HCA, which reads everything."""
    return CompressedAttention(
        heads=config.positive("num_attention_heads"),
        head_dim=config.positive("head_dim"),
        rope_dim=config.positive("qk_rope_head_dim"),
        window=config.positive("sliding_window"),
        ratio=ratio,
        selection=token_selection(config) if 0 < ratio <= 4 else None,
    )


def _projections(make: LayerBuilder, config: Config, attention: CompressedAttention) -> list[Matrix]:
    """The projections as engines run them (vLLM 0.24 to 0.32, models/deepseek_v4/attention.py).

    All GEMMs of the layer's input run at the same time, on parallel streams, and so do the two query projections.
    """
    heads, dim = attention.heads, attention.head_dim
    rank, out_rank, groups = (
        config.positive("q_lora_rank"),
        config.positive("o_lora_rank"),
        config.positive("o_groups"),
    )
    group_output = make.columns("attn.wo_a", out_rank, units=groups, inputs=heads * dim // groups)
    return [
        replace(make.whole("attn.wq_a", rank, fused="qkv_a"), stage="input"),
        replace(make.columns("attn.wq_b", heads * dim, units=heads, inputs=rank), stage="query"),
        replace(make.whole("attn.wkv", dim, fused="qkv_a"), stage="input"),
        replace(group_output, copies=groups),  # block-diagonal: each group of heads has its own
        make.rows("attn.wo_b", groups * out_rank, units=groups),
    ]


def _mixer(make: LayerBuilder, config: Config, attention: CompressedAttention) -> Mixer:
    """Compressors are one GEMM each. They and the indexer's weights are not quantised."""
    matrices = _projections(make, config, attention)
    vectors = _inner_vectors(config, attention)
    if attention.ratio:
        # CSA compresses overlapping windows, so its projections are twice as wide.
        width = (2 if attention.selection else 1) * attention.head_dim
        matrices += _compressor(make, "attn.compressor", width)
        vectors += attention.ratio * width + attention.head_dim
    if attention.selection:
        index = attention.selection
        matrices += [*_compressor(make, "attn.indexer.compressor", 2 * index.index_dim), *_scores(make, config, index)]
        vectors += attention.ratio * 2 * index.index_dim + index.index_dim
    return Mixer(attention, tuple(matrices), vectors)


def _inner_vectors(config: Config, attention: CompressedAttention) -> int:
    """Sinks and two norms."""
    return attention.heads + config.positive("q_lora_rank") + attention.head_dim


def _scores(make: LayerBuilder, config: Config, index: TokenSelection) -> list[Matrix]:
    queries = make.whole(
        "attn.indexer.wq_b", index.index_heads * index.index_dim, inputs=config.positive("q_lora_rank")
    )
    weights = make.whole("attn.indexer.weights_proj", index.index_heads)
    return [replace(queries, stage="query"), replace(weights, precision=BF16, stage="input")]


def _sharing_mixer(make: LayerBuilder, config: Config, index: int) -> Mixer:
    """A layer of V4.1. Keys of the indexer are projected from the compressed latent, so only its source has them."""
    layers = config.layer_count()
    compresses = index in (config.layer_indices("kv_source_layer_ids") or ())
    selects = index in (config.layer_indices("index_source_layer_ids") or ())
    attention = _attention(config, config.per_layer("compress_ratios", layers)[index] if index < layers else 0)
    if attention.ratio:
        selection = replace(token_selection(config), owns_indexer=selects)
        attention = replace(attention, selection=selection, owns_history=compresses)
    matrices, vectors = _projections(make, config, attention), _inner_vectors(config, attention)
    dim, key_dim = attention.head_dim, config.positive("index_head_dim")
    if compresses:  # without pooling there is no gate
        matrices += _compressor(make, "attn.compressor", dim)[: 2 if attention.ratio > 1 else 1]
        matrices.append(replace(make.whole("attn.indexer.wk", key_dim, inputs=dim), precision=BF16))
        vectors += dim + key_dim
    if selects:
        matrices += _scores(make, config, token_selection(config))
    return Mixer(attention, tuple(matrices), vectors)


def _with_table(make: LayerBuilder, config: Config, mixer: Mixer, streams: int) -> Mixer:
    """Engram: rows of n-gram tables, one per head and length of n-gram, projected onto every residual stream."""
    rows = (config.positive("engram_max_ngram_size") - 1) * config.positive("engram_n_heads")
    inputs = rows * config.positive("engram_head_dim")
    table = make.columns("engram.wkv", (streams + 1) * make.hidden, units=make.hidden, inputs=inputs)
    return mixer._replace(projections=(table, *mixer.projections), vectors=mixer.vectors + 2 * streams * make.hidden)


def _compressor(make: LayerBuilder, name: str, width: int) -> list[Matrix]:
    parts = [make.whole(f"{name}.{part}", width, fused=name) for part in ("wkv", "wgate")]
    return [replace(part, precision=BF16, stage="input") for part in parts]


def _experts(make: LayerBuilder, config: Config, *, drafts: bool = False) -> ExpertBlock:
    """`drafts`: those of the DSpark head, where it has its own number of them."""
    if not (drafts and config.has("dspark_n_routed_experts")):
        return routed(make, config, "n_routed_experts", shared="n_shared_experts", module="ffn")
    return routed(
        make,
        config,
        "dspark_n_routed_experts",
        per_token="dspark_num_experts_per_tok",
        shared="n_shared_experts",
        module="ffn",
    )


def connected(layer: Layer, hidden: int, streams: int) -> Layer:
    """With hyper-connections over `streams` residual streams around attention and around the feed-forward part."""
    before, after = (_hyper_connection(name, hidden, streams) for name in ("hc_attn", "hc_ffn"))
    mixing = (2 + streams) * streams + 3  # base and scale
    block = layer.experts and replace(layer.experts, router=(*layer.experts.router, after))
    return replace(
        layer,
        projections=(*layer.projections, before),
        dense=layer.dense if block else (*layer.dense, after),
        experts=block,
        vector_parameters=layer.vector_parameters + 2 * mixing,
    )


def _hyper_connection(name: str, hidden: int, streams: int) -> Matrix:
    return Matrix(name=name, inputs=streams * hidden, outputs=(2 + streams) * streams, precision=FP32, split=Split.NONE)
