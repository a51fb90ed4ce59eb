"""What the host launches for a step or a draft pass, by how much of it a CUDA graph holds.

Counted in tenths of what a dense layer of compiled code takes the host, about one and a half of its kernels. Two hosts
whose launches hid everything else gave the numbers of other layers (vLLM 0.32 on an H200: `lab.validation.rounds`,
lab/data/measurements/vllm-0.32-h200-graph-modes.json): 11 more for experts, 43 more for GatedDeltaNet (Triton kernels
launch slowly); in piecewise graphs 4 to 6 for an attention layer with or without experts, 28 for GatedDeltaNet.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from specmargin.architecture.types import LayerCounts


class Graph(StrEnum):
    """How a step runs, from the fewest launches to the most."""

    FULL = "full graphs"
    PIECEWISE = "piecewise graphs"  # attention, and recurrent layers, between the pieces
    COMPILED = "compiled code without a graph"
    EAGER = "eager code"


# Kernels that vLLM 0.32 launches for a layer with grouped attention and a dense feed-forward part: two norms, four
# GEMMs, rotation, cache write, attention, activation.
_LAYER = 10
_EXPERTS = 11  # in addition: router, choice, sorting, two grouped GEMMs, activation, sum
_RECURRENT = 43
# MLA's in addition (layers/mla.py, layers/attention/mla_attention.py): a second GEMM of the query, a norm of the latent
# and a slice; decoding two batched GEMMs, the query joined and the output copied, prompts the up-projection, two
# copies of the keys and one of the output.
_LATENT = 7
_LATENT_MIXED = 5  # a step with both runs both kernels: the four of the other, and its attention
# Activations are quantised before a product in FP8. Compiled code does so in the norm or activation before it, but not
# for attention's output; MLA's up-projection of prompts and both products of the experts, shared ones too, run inside
# operations that are not compiled (layers/attention/mla_attention.py, layers/fused_moe/experts/triton_moe.py). Counted
# so, GLM-4.7-Flash in FP8 and Qwen3-30B-A3B in bf16 show the same host (docs/results/served.md).
_FP8_OUTPUT, _FP8_LATENT, _FP8_EXPERTS, _FP8_SHARED = 1, 1, 2, 2

_PIECE = 5  # a piece's graph; then, from Python, the cache write and the attention
_LATENT_PIECE = 4  # of the seven, those inside the attention operation
_RECURRENT_PIECE = 28

# A dense model launched 476 kernels eagerly and 468 from compiled code, in the same time (the same file).
_EAGER = 1.02


# What the host does beside launching, in launches too, because a slow host is slow at all of it. One that took 68 µs
# per launch took 2.5 ms per step and 23 µs per sequence to schedule and prepare it; from client to scheduler 4.5 ms,
# back to the client 4 ms and 75 µs per stream (vLLM 0.32 and its API server on an H200: docs/results/served.md).
HOST_STEP, HOST_SEQUENCE = 37.0, 0.33
REQUEST, ANSWER, ANSWER_STREAM = 66.0, 59.0, 1.1
DRAFT_PROMPT = 290.0  # more in a step with prompts and no graph, if a drafter reads them too: 20 ms there


def launches(graph: Graph, counts: LayerCounts, *, mixed: bool = False) -> float:
    """`mixed`: prompts beside decoding sequences, which MLA runs apart."""
    latent_mixed = _LATENT_MIXED * counts.latent_layers if mixed else 0
    match graph:
        case Graph.FULL:
            return 0.0  # one launch, inside the time per step
        case Graph.PIECEWISE:
            attention = _PIECE * (counts.layers - counts.recurrent_layers) + _LATENT_PIECE * counts.latent_layers
            return float(attention + latent_mixed + _RECURRENT_PIECE * counts.recurrent_layers)
        case Graph.COMPILED:
            layers = _LAYER * counts.layers + _EXPERTS * counts.moe_layers + _RECURRENT * counts.recurrent_layers
            latent = _LATENT * counts.latent_layers + latent_mixed
            return float(layers + latent + _quantizing(counts) + counts.all_reduces)
        case Graph.EAGER:
            return _EAGER * launches(Graph.COMPILED, counts, mixed=mixed)
        case _:
            assert_never(graph)


def _quantizing(counts: LayerCounts) -> int:
    attention = _FP8_OUTPUT * counts.fp8_attention_layers + _FP8_LATENT * counts.fp8_latent_layers
    return attention + _FP8_EXPERTS * counts.fp8_moe_layers + _FP8_SHARED * counts.fp8_shared_layers
