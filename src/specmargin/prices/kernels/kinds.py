"""Which measurements price which part of a model: names shared by the fits and the price models."""

from __future__ import annotations

from typing import assert_never

from specmargin.architecture.precision import Arithmetic
from specmargin.architecture.types import (
    Attention,
    CompressedAttention,
    ExpertBlock,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)

# Specmargin's precisions, and the dtypes they are measured as: groups that engines run with kernels of the same kind,
# best match first. Within a group the engine's own kernels come before another engine's. Weight-only formats of four
# bits share the Marlin kernel where a GPU lacks the arithmetic (vLLM 0.32, fused_moe/oracle/nvfp4.py, mxfp4.py and
# int_wna16.py end in MARLIN), so each stands for the others.
_WEIGHT_ONLY = (("int4_wo",), ("w4a16_mxfp4",))
DTYPE_GROUPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "bf16": (("bfloat16",),),
    "fp16": (("bfloat16",),),
    "fp8": (("fp8", "fp8_block"),),
    "fp8-block": (("fp8_block", "fp8"),),
    "mxfp8": (("fp8_block", "fp8"),),
    "nvfp4": (("nvfp4",), *_WEIGHT_ONLY),
    "nvfp4-w4a16": (*_WEIGHT_ONLY, ("nvfp4",)),
    "mxfp4": (("w4a8_mxfp4_mxfp8", "w4a16_mxfp4"), ("int4_wo",), ("nvfp4",)),
    "int4-g32": _WEIGHT_ONLY,
    "int4-g64": _WEIGHT_ONLY,
    "int4-g128": _WEIGHT_ONLY,
}
DTYPES = {name: tuple(dtype for group in groups for dtype in group) for name, groups in DTYPE_GROUPS.items()}
_ARITHMETIC = {"fp8": Arithmetic.FP8, "nvfp4": Arithmetic.FP4, "w4a8": Arithmetic.FP8}


def arithmetic_of(dtype: str) -> Arithmetic:
    """The format in which a kernel of this dtype multiplies; int4 and the like are converted to bf16 first."""
    return next((kind for prefix, kind in _ARITHMETIC.items() if dtype.startswith(prefix)), Arithmetic.BF16)


MODULE_KINDS = ("mla", "dsa", "csa", "hca")  # attention that was measured as a whole module


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
            # As in MLA: without an indexer of its own, a layer only reads (V4.1).
            selects = attention.selection is not None and attention.selection.owns_indexer
            return "csa" if selects else "hca"
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


def family(operation: str, dtype: str, variant: str) -> str:
    """Laws that are equally certain: attention by head size and cache, everything else by operation and dtype."""
    return f"{operation}/{variant if operation == 'attention' else dtype}"
