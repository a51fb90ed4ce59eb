"""Closed choices that options name. Nothing here imports NumPy, so that `--help` can list them at once."""

from __future__ import annotations

from enum import StrEnum


class Parallel(StrEnum):
    """How a model is spread over GPUs."""

    TP = "tp"  # everything is split over all GPUs
    EP = "ep"  # tensor-parallel attention, expert-parallel experts
    DP_EP = "dp-ep"  # data-parallel attention (each GPU has its own sequences), expert-parallel experts


class Placement(StrEnum):
    """Which experts lie on which rank."""

    CONTIGUOUS = "contiguous"  # the first experts on the first rank: what engines do unless told otherwise
    ROUND_ROBIN = "round-robin"
    BALANCED = "balanced"  # by popularity, as an expert load balancer would


class RooflineForm(StrEnum):
    """Over what a roofline takes the larger of bytes and FLOPs."""

    PER_COMPONENT = "per-component"  # kernels run one after another: a max for each
    WHOLE_STEP = "whole-step"  # one max over the whole step, as some published grids assume


class Hold(StrEnum):
    """What all variants of a design have in common with the model as it is."""

    ACTIVE = "active"  # parameters of the experts that a token uses, the shared ones among them
    TOTAL = "total"  # those, and the parameters of all experts together
