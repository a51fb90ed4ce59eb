"""Up to how many positions llama.cpp multiplies with a matrix-vector kernel, by backend, generation and block format.

From its source of August 2026. CUDA and HIP: ggml-cuda/mmvq.cu, ggml_cuda_should_use_mmvq and get_mmvq_mmid_max_batch
(8 where nothing else is said; each position more redoes the integer work of the weights, so matrix-matrix kernels win
sooner with formats that take more of it). Metal: ggml-metal-ops.cpp, ggml_metal_op_mul_mat (small-batch kernels from 2
to 8, for K-quants from 4) and ggml_metal_op_mul_mat_id (matrix-vector below 32 tokens). Vulkan: mul_mat_vec_max_cols
and ggml_vk_use_mul_mat_vec_id, both 8.
"""

from __future__ import annotations

from collections.abc import Mapping

from specmargin.prices.llamacpp.backends import Backend

_MOST = 8
_METAL_EXPERTS = 31
_METAL_FEWEST_K_QUANTS, _METAL_K_QUANTS = 4, 1.4
_Limits = Mapping[str, int]

_DENSE: dict[str, _Limits] = {
    "sm_89": {"q2_k": 4, "q3_k": 6, "q4_k": 7, "q5_k": 7},
    "sm_120": {"q2_k": 5, "q3_k": 5, "q4_k": 5, "q5_k": 5, "q6_k": 7},
    "sm_121": {"q2_k": 6},
    "gfx9": {"q2_k": 5, "q3_k": 3, "q4_k": 3, "q5_k": 3, "q6_k": 5},  # CDNA 2 and later
}

_TURING_TO_AMPERE = {"iq2_s": 7, "iq3_s": 6, "iq3_xxs": 7, "mxfp4": 7, "q2_k": 7, "q3_k": 5}
_PASCAL = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq4_nl", "q4_0", "q4_1", "q5_0", "q5_1"), 6),
    **dict.fromkeys(("iq2_xs", "iq2_xxs", "iq4_xs", "q4_k", "q5_k"), 5),
    **dict.fromkeys(("iq2_s", "iq3_s", "iq3_xxs", "mxfp4", "nvfp4", "q2_k", "q3_k", "q6_k", "q8_0"), 4),
}
_LOW_BITS = dict.fromkeys(("iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs"), 4)
_EXPERTS: dict[str, _Limits] = {
    **dict.fromkeys(("sm_60", "sm_61"), _PASCAL),
    **dict.fromkeys(("sm_75", "sm_80", "sm_86", "sm_87"), _TURING_TO_AMPERE),
    "gfx9": {"iq2_s": 5, "iq2_xs": 5, "iq2_xxs": 5, "iq3_s": 4, "iq3_xxs": 5},
    "gfx10": {**_LOW_BITS, "q2_k": 7, "q3_k": 4, "q4_k": 5, "q5_k": 6, "q6_k": 5},
    "gfx11": {**_LOW_BITS, "iq1_s": 6, "iq1_m": 6, "iq4_nl": 6, "iq4_xs": 6, "q4_k": 4, "q5_k": 4, "q6_k": 4},
    "gfx12": {
        **_LOW_BITS,
        **dict.fromkeys(("iq1_s", "iq1_m", "iq4_nl", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"), 7),
        "iq4_xs": 5,
        "mxfp4": 5,
        "nvfp4": 5,
        "q3_k": 4,
        "q4_k": 4,
        "q5_k": 5,
        "q6_k": 5,
    },
}


def vector_limit(backend: Backend, generation: str | None, block: str, *, experts: bool) -> int:
    """The largest number of positions of a matrix-vector kernel; of routed experts, the tokens of the step."""
    if backend is Backend.METAL:
        return _METAL_EXPERTS if experts else _MOST
    if backend is Backend.VULKAN or generation is None:
        return _MOST
    return _limits(_EXPERTS if experts else _DENSE, generation).get(block, _MOST)


def _limits(table: Mapping[str, _Limits], generation: str) -> _Limits:
    return next((limits for start, limits in table.items() if _is_of(generation, start)), {})


def _is_of(generation: str, start: str) -> bool:
    return generation == start if start.startswith("sm_") else generation.startswith(start)


def columns_by_launch(backend: Backend, block: str, positions: int) -> float:
    """Positions that one pass over the weights serves.

    Metal multiplies K-quants position by position below four. Its small-batch kernel unpacks them again for every
    position: 4 and 8 take 1/1.4 of as many passes (llama.cpp pull request 20250: Q3_K_S on an M1 Max and an M4 Pro is
    1.36, 1.56, 1.43 and 1.32 times as fast as one by one).
    """
    if backend is not Backend.METAL:
        return positions
    if block.endswith("_k"):
        return _METAL_K_QUANTS if positions >= _METAL_FEWEST_K_QUANTS else 1
    return {1: 1, 2: 2, 3: 3, 5: 5, 6: 3}.get(positions, 4)  # kernel_mul_mv_ext: r1ptg
