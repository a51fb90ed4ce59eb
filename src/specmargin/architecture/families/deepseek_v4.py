"""DeepSeek V4: one shared KV head, a window and a compressed history, hyper-connections."""

from __future__ import annotations

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
)
from specmargin.architecture.families.deepseek import token_selection
from specmargin.architecture.precision import BF16, FP8, FP32, MXFP4
from specmargin.architecture.types import (
    Architecture,
    CompressedAttention,
    ExpertBlock,
    Layer,
    Matrix,
    Split,
)
from specmargin.errors import ArchitectureError


def deepseek_v4(reading: Reading) -> Architecture:
    config = reading.config
    if config.text("expert_dtype", "") == "fp4" and reading.scheme.experts is None:  # --weights sets the experts too
        reading = replace(reading, scheme=replace(reading.scheme, experts=MXFP4))
    hidden, layers = reading.hidden, config.layer_count()
    ratios = config.per_layer("compress_ratios", layers)
    if not all(isinstance(ratio, int) and ratio >= 0 for ratio in ratios):
        raise ArchitectureError(f"{config.origin}: 'compress_ratios' must list whole numbers, got {ratios}")
    streams = config.positive("hc_mult")
    config.positive("n_shared_experts")  # every V4 has them: a missing key must not read as none

    def layer(make: LayerBuilder, index: int) -> Layer:
        mixer = _mixer(make, config, _attention(config, ratios[index] if index < layers else 0))
        mixing = (2 + streams) * streams + 3  # base and scale of a hyper-connection
        mixer = mixer._replace(
            projections=(*mixer.projections, _hyper_connection("hc_attn", make.hidden, streams)),
            vectors=mixer.vectors + 2 * mixing,
        )
        return make.layer(mixer, _experts(make, config, streams))

    return decoder(
        reading,
        layer,
        draft_layers=mtp_layers(config),
        draft_module=MTP_MODULE,
        head_name="head",
        # The final norm, and the head that collapses the residual streams into one.
        vector_parameters=hidden + streams * streams * hidden + streams + 1,
        # The engine stores the non-positional part of a KV entry in fp8 and the rotary part in bf16.
        kv_precision=FP8,
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


def _mixer(make: LayerBuilder, config: Config, attention: CompressedAttention) -> Mixer:
    """The projections as engines run them (vLLM 0.24 to 0.32, models/deepseek_v4/attention.py).

    All GEMMs of the layer's input run at the same time, on parallel streams, and so do the two query projections.
    Compressors are one GEMM each. They and the indexer's weights are not quantised.
    """
    heads, dim = attention.heads, attention.head_dim
    rank, out_rank, groups = (
        config.positive("q_lora_rank"),
        config.positive("o_lora_rank"),
        config.positive("o_groups"),
    )
    group_output = make.columns("attn.wo_a", out_rank, units=groups, inputs=heads * dim // groups)
    matrices = [
        replace(make.whole("attn.wq_a", rank, fused="qkv_a"), stage="input"),
        replace(make.columns("attn.wq_b", heads * dim, units=heads, inputs=rank), stage="query"),
        replace(make.whole("attn.wkv", dim, fused="qkv_a"), stage="input"),
        replace(group_output, copies=groups),  # block-diagonal: each group of heads has its own
        make.rows("attn.wo_b", groups * out_rank, units=groups),
    ]
    vectors = heads + rank + dim  # sinks and two norms
    if attention.ratio:
        # CSA compresses overlapping windows, so its projections are twice as wide.
        width = 2 * dim if attention.selection else dim
        matrices += _compressor(make, "attn.compressor", width)
        vectors += attention.ratio * width + dim
    if attention.selection:
        index = attention.selection
        matrices += [
            *_compressor(make, "attn.indexer.compressor", 2 * index.index_dim),
            replace(make.whole("attn.indexer.wq_b", index.index_heads * index.index_dim, inputs=rank), stage="query"),
            replace(make.whole("attn.indexer.weights_proj", index.index_heads), precision=BF16, stage="input"),
        ]
        vectors += attention.ratio * 2 * index.index_dim + index.index_dim
    return Mixer(attention, tuple(matrices), vectors)


def _compressor(make: LayerBuilder, name: str, width: int) -> list[Matrix]:
    parts = [make.whole(f"{name}.{part}", width, fused=name) for part in ("wkv", "wgate")]
    return [replace(part, precision=BF16, stage="input") for part in parts]


def _experts(make: LayerBuilder, config: Config, streams: int) -> ExpertBlock:
    block = routed(make, config, "n_routed_experts", shared="n_shared_experts", module="ffn")
    return replace(block, router=(*block.router, _hyper_connection("hc_ffn", make.hidden, streams)))


def _hyper_connection(name: str, hidden: int, streams: int) -> Matrix:
    return Matrix(name=name, inputs=streams * hidden, outputs=(2 + streams) * streams, precision=FP32, split=Split.NONE)
