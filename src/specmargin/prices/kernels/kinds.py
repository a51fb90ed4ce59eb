"""Which measurements price which part of a model: names shared by the fitting script and the price models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from specmargin.architecture.types import (
    Attention,
    CompressedAttention,
    ExpertBlock,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)

# Specmargin's precisions, and the dtypes they are measured as, best match first.
DTYPES = {
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16",),
    "fp8": ("fp8", "fp8_block"),
    "fp8-block": ("fp8_block", "fp8"),
    "mxfp8": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4",),
    "nvfp4-w4a16": ("int4_wo", "nvfp4"),
    "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4", "nvfp4"),
    "int4-g32": ("int4_wo",),
    "int4-g64": ("int4_wo",),
    "int4-g128": ("int4_wo",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTable:
    """A whole attention module as it was measured: its kind, operation folder, file, and whose shapes it has."""

    kind: str
    operation: str
    file: str
    model: str  # the bundled model
    table_models: tuple[str, ...]  # ends of its names in the tables


def _sparse(kind: str, file: str, model: str, *table_models: str) -> ModuleTable:
    return ModuleTable(kind=kind, operation="sparse_attention", file=file, model=model, table_models=table_models)


# Laws are fitted to the first model of each kind; the others are only looked up and validated.
MODULES = (
    ModuleTable(
        kind="mla",
        operation="mla",
        file="mla_generation_module_perf",
        model="deepseek-v3",
        table_models=("DeepSeek-V3",),
    ),
    _sparse("dsa", "dsa_generation_module_perf", "deepseek-v3.2", "DeepSeek-V3.2"),
    _sparse("dsa", "dsa_generation_module_perf", "glm-5", "GLM-5", "GLM-5-FP8"),
    _sparse("csa", "dsv4_csa_generation_module_perf", "deepseek-v4-flash", "V4-Flash-FP8"),
    _sparse("csa", "dsv4_csa_generation_module_perf", "deepseek-v4-pro", "V4-Pro", "V4-Pro-FP8"),
    _sparse("hca", "dsv4_hca_generation_module_perf", "deepseek-v4-flash", "V4-Flash-FP8"),
    _sparse("hca", "dsv4_hca_generation_module_perf", "deepseek-v4-pro", "V4-Pro", "V4-Pro-FP8"),
)
MODULE_KINDS = tuple(dict.fromkeys(module.kind for module in MODULES))


def attention_kind(attention: Attention) -> str:
    """The operation that an attention layer is measured as; "" where its kind was not measured."""
    match attention:
        case GroupedAttention():
            return "attention" if attention.selection is None else ""
        case LatentAttention():
            # A layer that reuses a selection (GLM-5.2) has no indexer and no top-k: MLA over the selected tokens.
            selects = attention.selection is not None and attention.selection.owns_indexer
            return "dsa" if selects else "mla"
        case CompressedAttention():
            return "hca" if attention.selection is None else "csa"
        case LinearAttention():
            return "gdn" if attention.kind == "gated_delta_net" else ""
        case _:
            assert_never(attention)


def grouped_variant(attention: GroupedAttention, kv_name: str) -> str:
    """Head size, whether a window bounds the context, and the precision of the cache."""
    window = "-window" if attention.window is not None else ""
    return f"d{attention.key_dim}{window}-{'fp8' if kv_name.startswith('fp8') else 'bf16'}"


def is_plain(block: ExpertBlock) -> bool:
    """Two matrices per expert (squared ReLU) instead of three."""
    first, second = block.expert
    return first.outputs == second.inputs


def expert_variant(kernel: str, *, spread: bool, plain: bool) -> str:
    return f"{kernel}{'/spread' if spread else ''}{'/plain' if plain else ''}"


def shape_key(hidden: int, intermediate: int, topk: int, experts: int) -> str:
    return f"{hidden}x{intermediate}x{topk}x{experts}"
