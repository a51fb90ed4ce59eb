"""Generations of GPUs as compilers name them: sm_90, gfx1151, bmg_g21, apple9."""

from __future__ import annotations

import re

VENDORS = {"sm_": "nvidia", "gfx": "amd", "bmg": "intel", "apple": "apple"}  # by how a generation's name begins


def capability_of(generation: str) -> int | None:
    """90 of sm_90 and sm_90a; None for what CUDA does not run on."""
    match = re.fullmatch(r"sm_([0-9]{2,3})[a-z]?", generation)
    return int(match[1]) if match else None
