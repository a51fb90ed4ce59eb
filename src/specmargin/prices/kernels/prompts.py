"""Attention of prompts: the paths that engines take, and what each path reads, copies and computes.

MLA has two forms. Absorbed, as in decoding, every head attends in the latent's dimensions, and queries and outputs are
multiplied by the up-projection. Dense, keys and values of all tokens are up-projected first (those of the cached
context again for every piece of a prompt), keys are copied beside their rotary part, and attention runs in the heads'
own dimensions.

Features of these laws, beside the bytes and operations of the attention kernel: units are the indexer's products
(1e9 operations), residents the prompts' positions, elements the bytes that are copied around the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np

from specmargin.architecture.types import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    TokenSelection,
)
from specmargin.prices.attention import attended_pairs
from specmargin.prices.kernels.kinds import attention_kind
from specmargin.prices.kernels.law import Terms
from specmargin.step import BoolArray, FloatArray, Step

_BYTES = 2.0  # prompts are computed in bf16
_INDEX_UNIT = 1e-9
_FEATURES = ("bytes", "operations", "units", "residents", "elements")
_TAPS = 3  # entries that GatedDeltaNet's convolution keeps per channel

# vLLM on Hopper runs short queries with the decode kernel, absorbed: 512 tokens with FlashAttention (a bf16 cache), 128
# with FlashMLA (fp8). vLLM 0.17 to 0.33, v1/attention/backends/mla/flashattn_mla.py and flashmla.py,
# reorder_batch_threshold; the measured tables name these kernels at the same lengths.
_HOPPER = "sm_90"
_ABSORBED_TOKENS, _ABSORBED_TOKENS_FP8 = 512, 128
# SGLang up-projects a cached context from 8,192 tokens on (SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD), below it absorbs:
# 0.5.23, models/deepseek_common/attention_backend_handler.py:125.
_SGLANG_CONTEXT = 8192.0
# Heads that FlashMLA's sparse kernel computes at least, whatever a rank has: vLLM 0.24, mla/flashmla_sparse.py:578;
# SGLang 0.5.23, attention/dsa_backend.py:2824.
_SPARSE_HEADS, _SPARSE_HEADS_HOPPER = 128.0, 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPath:
    """What decides how an engine computes prompts.

    `dense_selection`: while a prompt fits into the selection, DSA computes all of it densely (SGLang 0.5.23,
    dsa_backend.py:4064; TensorRT-LLM by its rows; vLLM from 0.27 on, sparse_mla_attention.py:136).
    """

    engine: str
    architecture: str | None  # of the device
    fp8_cache: bool
    ranks: int
    dense_selection: bool = True

    def absorbs(self, run: FloatArray, context: FloatArray) -> BoolArray:
        """Whether MLA is computed in the latent's dimensions, by class of sequence."""
        if self.engine == "sglang":
            return np.asarray((context > 0) & (context < _SGLANG_CONTEXT))
        if self.engine == "vllm" and self.architecture == _HOPPER:
            return np.asarray(run <= (_ABSORBED_TOKENS_FP8 if self.fp8_cache else _ABSORBED_TOKENS))
        return np.zeros(run.shape, dtype=bool)

    def sparse_heads(self, heads: float) -> float:
        if self.engine not in ("vllm", "sglang"):
            return heads
        return max(heads, _SPARSE_HEADS_HOPPER if self.architecture == _HOPPER else _SPARSE_HEADS)


def prompt_kind(attention: Attention) -> str:
    """Whose law prices its prompts; "" without one of their own. A layer that reuses a selection runs DSA's kernel."""
    if isinstance(attention, LatentAttention):
        return "mla" if attention.selection is None else "dsa"
    kind = attention_kind(attention)
    return "" if kind == "attention" else kind


def prompt_terms(attention: Attention, step: Step, path: PromptPath) -> Terms:
    """The features of the law of prompts, for one layer on one rank."""
    match attention:
        case GroupedAttention():
            return _grouped(attention, step, path)
        case LatentAttention() if attention.selection is not None:
            return _selecting(attention, attention.selection, step, path)
        case LatentAttention():
            return _latent(attention, step, path, path.absorbs(step.run_by_class, step.context_by_class))
        case CompressedAttention():
            return _compressed(attention, step, path)
        case LinearAttention():
            return _linear(attention, step, path)
        case _:
            assert_never(attention)


def fits_selection(attention: LatentAttention, step: Step, path: PromptPath) -> BoolArray:
    """Whether DSA computes the step's prompts densely: its longest sequence fits into the selection."""
    longest = (step.run_by_class + step.context_by_class).max(axis=-1)
    if attention.selection is None or not path.dense_selection:
        return np.zeros(longest.shape, dtype=bool)
    return np.asarray(longest <= attention.selection.top_k)


def projected_context(attention: LatentAttention, step: Step, path: PromptPath) -> FloatArray:
    """Cached tokens whose keys and values are up-projected again in this step."""
    run, context = step.run_by_class, step.context_by_class
    if attention.selection is not None:
        return np.asarray(np.where(fits_selection(attention, step, path), step.total(context), 0.0))
    return step.total(np.where(path.absorbs(run, context), 0.0, context))


def _grouped(a: GroupedAttention, step: Step, path: PromptPath) -> Terms:
    run, context = step.run_by_class, step.context_by_class
    heads, kv_heads, dims = a.heads / path.ranks, max(1.0, a.kv_heads / path.ranks), float(a.key_dim + a.value_dim)
    span = context + run if a.window is None else run + np.minimum(context, a.window)
    reach = np.inf if a.window is None else float(a.window)
    pairs = run * np.minimum(context + (run + 1.0) / 2.0, reach)
    return Terms(
        bytes=step.total(run * heads + span * kv_heads) * dims * _BYTES,
        operations=step.total(pairs) * heads * 2.0 * dims,
    )


def _latent(a: LatentAttention, step: Step, path: PromptPath, absorbed: BoolArray) -> Terms:
    run, context = step.run_by_class, step.context_by_class
    heads, tokens = a.heads / path.ranks, run + context
    own_dims, latent_dims = float(a.key_dim + a.value_dim), 2.0 * a.latent_dim + a.rope_dim
    in_latent = heads * latent_dims * run + (a.latent_dim + a.rope_dim) * tokens
    return Terms(
        bytes=_BYTES * step.total(np.where(absorbed, in_latent, heads * own_dims * (run + tokens))),
        operations=2.0 * heads * step.total(np.where(absorbed, latent_dims, own_dims) * attended_pairs(run, context)),
        residents=step.positions,
        elements=heads * step.total(np.where(absorbed, _absorbed_copies(a) * run, _dense_copies(a, run, tokens))),
    )


def _selecting(a: LatentAttention, s: TokenSelection, step: Step, path: PromptPath) -> Terms:
    """As MLA while all prompts fit into the selection; the indexer then only stores its keys."""
    fits = fits_selection(a, step, path)
    dense = _latent(a, step, path, np.zeros(step.run_by_class.shape, dtype=bool))
    sparse = _sparse(a, s, step, path)
    return Terms(**{name: np.where(fits, getattr(dense, name), getattr(sparse, name)) for name in _FEATURES})


def _sparse(a: LatentAttention, s: TokenSelection, step: Step, path: PromptPath) -> Terms:
    run, context = step.run_by_class, step.context_by_class
    heads, latent_dims = a.heads / path.ranks, 2.0 * a.latent_dim + a.rope_dim
    computed = path.sparse_heads(heads)
    pairs = attended_pairs(run, context)
    return Terms(
        bytes=_BYTES * step.total(computed * latent_dims * run + (a.latent_dim + a.rope_dim) * (run + context)),
        operations=2.0 * computed * latent_dims * step.total(np.minimum(pairs, run * s.top_k)),
        units=step.total(_index_work(s, pairs)),
        residents=step.positions,
        elements=heads * _absorbed_copies(a) * step.positions,
    )


def _dense_copies(a: LatentAttention, run: FloatArray, tokens: FloatArray) -> FloatArray:
    """Per head: keys joined with their rotary part, queries rotated, the output copied.

    vLLM 0.33, layers/attention/mla_attention.py: _concat_k_nope_k_pe (2931) and forward_mha (3227).
    """
    keys = (a.key_dim - a.rope_dim) + a.key_dim
    return _BYTES * (tokens * keys + run * (2.0 * a.rope_dim + 2.0 * a.value_dim))


def _absorbed_copies(a: LatentAttention) -> float:
    """Per head and position: the query multiplied into the latent's dimensions and joined, the output back again."""
    joined = a.latent_dim + a.rope_dim
    return _BYTES * (a.latent_dim + 2.0 * joined + (a.latent_dim + a.value_dim) + 2.0 * a.rope_dim)


def _compressed(a: CompressedAttention, step: Step, path: PromptPath) -> Terms:
    run, context = step.run_by_class, step.context_by_class
    heads = a.heads / path.ranks
    window = attended_pairs(run, context, a.window)
    history = attended_pairs(run, context) / a.ratio if a.ratio else 0.0 * run
    selected = history if a.selection is None else np.minimum(history, run * a.selection.top_k)
    computed = max(heads, _SPARSE_HEADS_HOPPER)
    return Terms(
        bytes=2.0 * _BYTES * computed * a.head_dim * step.positions,
        operations=4.0 * computed * a.head_dim * step.total(window + selected),
        units=step.total(_index_work(a.selection, history)),
        residents=step.positions,
        elements=4.0 * _BYTES * heads * a.head_dim * step.positions,
    )


def _index_work(s: TokenSelection | None, pairs: FloatArray) -> FloatArray:
    """Scores of all pairs, by every rank."""
    if s is None or not s.owns_indexer:
        return 0.0 * pairs
    return pairs * (2.0 * s.index_heads * s.index_dim / s.key_tokens * _INDEX_UNIT)


def _linear(a: LinearAttention, step: Step, path: PromptPath) -> Terms:
    """The convolution reads and writes every channel; the recurrence moves from chunk to chunk of a prompt.

    One head's chunks follow each other however many heads and prompts run beside it: `operations` are one head's.
    """
    ranks = min(path.ranks, a.heads)
    channels = a.convolution_elements / _TAPS / ranks
    longest = step.run_by_class.max(axis=-1)
    return Terms(
        bytes=_BYTES * 2.0 * channels * step.positions,
        operations=longest * a.flops_per_position / a.heads,
        units=step.sequences * (a.heads / ranks),
        residents=step.positions,
    )
