"""llama.cpp's file types: which matrix `llama-quantize` stores in which block format.

A rule of the quantiser gives more bits to the values of attention and to down-projections, in all layers or in some:
`use_more_bits` names half of them (the first and last eighth, and every third between). Layers that differ only so are
one here, whose matrix has the mean of both formats. Attention's queries, keys and values as one matrix count as values
(llama.cpp, src/llama-quant.cpp: llama_tensor_get_type_impl). Quantisers with an importance matrix of their own differ:
Unsloth's UD types are chosen per tensor and model, so `ud-q4_k_xl` is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from specmargin.architecture.precision import MXFP4, PRECISIONS, Arithmetic, Precision

#: Bytes per weight of block formats. A file type may have the name of one of them (Q2_K mixes in Q3_K and Q4_K).
_BLOCK_BYTES = {"q2_k": 84 / 256}
_HALF, _EIGHTH = 0.5, 0.125
_Mix = Mapping[str, float]

VALUE, DOWN, GATE, OUTPUT, KEY, QUERY = "value", "down", "gate", "output", "key", "query"
EXPERT, OTHER = "expert", "other"
_ROLES = {
    "v_proj": VALUE,
    "qkv_proj": VALUE,
    "in_proj_qkv": VALUE,
    "kv_b_proj": VALUE,
    "down_proj": DOWN,
    "gate_up_proj": GATE,
    "gate_proj": GATE,
    "up_proj": GATE,
    "o_proj": OUTPUT,
    "k_proj": KEY,
    "q_proj": QUERY,
}


def _mix(**shares: float) -> _Mix:
    return shares


#: By file type, roles that differ from the type's own format.
_FILE_TYPES: dict[str, tuple[str, Mapping[str, _Mix]]] = {
    "q2_k": ("q2_k", {VALUE: _mix(q4_k=1), DOWN: _mix(q3_k=1), OUTPUT: _mix(q3_k=1)}),
    "q3_k_s": ("q3_k", {}),
    "q3_k_m": ("q3_k", {VALUE: _mix(q4_k=1), DOWN: _mix(q5_k=1 / 16, q4_k=15 / 16), OUTPUT: _mix(q4_k=1)}),
    "q3_k_l": ("q3_k", {VALUE: _mix(q5_k=1), DOWN: _mix(q5_k=1), OUTPUT: _mix(q5_k=1)}),
    "q4_k_s": ("q4_k", {VALUE: _mix(q4_k=1 - _EIGHTH, q5_k=_EIGHTH), DOWN: _mix(q4_k=1 - _EIGHTH, q5_k=_EIGHTH)}),
    "q4_k_m": ("q4_k", {VALUE: _mix(q4_k=_HALF, q6_k=_HALF), DOWN: _mix(q4_k=_HALF, q6_k=_HALF)}),
    "q5_k_s": ("q5_k", {}),
    "q5_k_m": ("q5_k", {VALUE: _mix(q5_k=_HALF, q6_k=_HALF), DOWN: _mix(q5_k=_HALF, q6_k=_HALF)}),
    "iq2_m": ("iq2_s", {VALUE: _mix(q4_k=1), DOWN: _mix(iq2_s=1 - _EIGHTH, iq3_s=_EIGHTH), OUTPUT: _mix(iq3_s=1)}),
    "iq3_xxs": ("iq3_xxs", {VALUE: _mix(q4_k=1), OUTPUT: _mix(iq3_s=1), KEY: _mix(iq2_s=1), QUERY: _mix(iq2_s=1)}),
    "iq3_xs": (
        "iq3_s",
        {VALUE: _mix(q4_k=1), GATE: _mix(iq3_s=1 / 4, iq3_xxs=3 / 4), KEY: _mix(iq3_xxs=1), QUERY: _mix(iq3_xxs=1)},
    ),
    "iq3_s": ("iq3_s", {VALUE: _mix(q4_k=1)}),
    "iq3_m": ("iq3_s", {VALUE: _mix(q4_k=1), DOWN: _mix(iq3_s=1 - _EIGHTH, q4_k=_EIGHTH), OUTPUT: _mix(q4_k=1)}),
    "iq4_xs": ("iq4_xs", {VALUE: _mix(q5_k=1)}),
    "iq4_nl": ("iq4_nl", {VALUE: _mix(q5_k=1)}),
    "mxfp4_moe": ("q8_0", {EXPERT: _mix(mxfp4=1)}),
    # 33.31 GiB of Qwen3.6-27B, which attention in 16 bits explains
    "q8_k_xl": ("fp16", {**dict.fromkeys((GATE, DOWN), _mix(q8_0=1)), EXPERT: _mix(q8_0=1)}),
    # gate and up in q4_k, down in q5_k (llama.cpp pull request 26264, Qwen3.6-35B-A3B); attention in q5_k is assumed
    "ud-q4_k_xl": ("q5_k", {GATE: _mix(q4_k=1), EXPERT: _mix(q5_k=1)}),
}
_LOW_HEADS = ("iq1_", "iq2_", "iq3_xxs")  # file types whose LM head is in q5_k


def is_gguf(precision: Precision) -> bool:
    """Whether it is one of llama.cpp's own formats or file types."""
    return precision.container == "gguf"


def head_precision(file_type: str) -> Precision:
    """Of the LM head, or of the embedding where it is the head."""
    if file_type in ("q8_0", "q8_k_xl", "mxfp4_moe"):
        return PRECISIONS["q8_0"]
    return PRECISIONS["q5_k" if file_type.startswith(_LOW_HEADS) else "q6_k"]


def role_precisions(file_type: str) -> dict[str, Precision]:
    """Every role, by the file type; those of a single format have it all."""
    return {role: _of_role(file_type, role) for role in (*_ROLES.values(), EXPERT, OTHER)}


def role_of(matrix: str) -> str:
    """By the last part of a matrix's name."""
    return _ROLES.get(matrix.rpartition(".")[2], OTHER)


@cache
def _of_role(file_type: str, role: str) -> Precision:
    if file_type not in _FILE_TYPES:
        return PRECISIONS[file_type]
    own, others = _FILE_TYPES[file_type]
    mix = others.get(role, {own: 1.0})
    return Precision(
        name=file_type,
        bytes_per_parameter=sum(block_bytes(block) * share for block, share in mix.items()),
        arithmetic=Arithmetic.INT8,
        blocks=tuple(mix.items()),
    )


def block_bytes(block: str) -> float:
    return _BLOCK_BYTES.get(block) or (MXFP4 if block == "mxfp4" else PRECISIONS[block]).bytes_per_parameter


def blocks_of(precision: Precision) -> tuple[tuple[str, float], ...]:
    """The block formats of a matrix, each with its share of the weights."""
    return precision.blocks or ((precision.name, 1.0),)
