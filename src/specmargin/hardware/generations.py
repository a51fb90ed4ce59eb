"""Generations of GPUs as compilers name them: sm_90, gfx1151, bmg_g21, apple9."""

from __future__ import annotations

import re

# By how a generation's name begins.
VENDORS = {"sm_": "nvidia", "gfx": "amd", "bmg": "intel", "apple": "apple", "cpu": "cpu"}
UNIFIED = ("apple", "cpu", "gfx1150", "gfx1151", "sm_121")  # their memory is the processor's, too


def capability_of(generation: str) -> int | None:
    """90 of sm_90 and sm_90a; None for what CUDA does not run on."""
    match = re.fullmatch(r"sm_([0-9]{2,3})[a-z]?", generation)
    return int(match[1]) if match else None
