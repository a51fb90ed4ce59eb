"""Arithmetic of block formats in matrix-vector kernels, relative to q4_0.

Every position unpacks the weights again (`column`), and formats with look-up grids or scales in six bits do work that
no position saves (`decode`). From whole steps of 1 to 8 positions: an RTX 3090 and 4090 with IQ3_XXS (llama.cpp pull
request 8215), an RTX 3090 and a V100 with Q2_K (5434, 28912), and the positions at which matrix kernels win on an
RTX 4090 and 5090 (26079, mmvq.cu): Q2_K 4 and 5, Q3_K 6 and 5, Q4_K 7 and 5, legacy formats never below 9.
"""

from __future__ import annotations

from typing import NamedTuple


class FormatWork(NamedTuple):
    decode: float
    column: float


_LIKE_Q4_0 = FormatWork(0.0, 1.0)
_FORMATS = {
    "q4_k": FormatWork(0.2, 1.2),
    "q5_k": FormatWork(0.2, 1.25),
    "q6_k": FormatWork(0.2, 1.15),
    "q3_k": FormatWork(1.0, 1.5),
    "q2_k": FormatWork(2.2, 1.5),
    "iq4_nl": FormatWork(0.0, 1.3),
    "iq4_xs": FormatWork(0.2, 1.3),
    "mxfp4": FormatWork(0.0, 1.2),
    "nvfp4": FormatWork(0.0, 1.3),
    "fp16": FormatWork(0.0, 0.5),
    "bf16": FormatWork(0.0, 0.5),
    "fp32": FormatWork(0.0, 0.5),
}
_LOOK_UP = FormatWork(2.2, 0.9)  # iq1, iq2 and iq3: grids


def format_work(block: str) -> FormatWork:
    return _FORMATS.get(block) or (_LOOK_UP if block.startswith(("iq1", "iq2", "iq3")) else _LIKE_Q4_0)
