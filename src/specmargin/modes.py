"""The values of closed options. Nothing here imports NumPy, so that `--help` is fast."""

from __future__ import annotations

from enum import StrEnum


class Parallel(StrEnum):
    """How a model is spread over GPUs."""

    TP = "tp"  # everything is split over all GPUs
    EP = "ep"  # tensor-parallel attention, expert-parallel experts
    DP_EP = "dp-ep"  # data-parallel attention (each GPU has its own sequences), expert-parallel experts


class Placement(StrEnum):
    """The assignment of experts to ranks."""

    CONTIGUOUS = "contiguous"  # the first experts on the first rank: the engines' default
    ROUND_ROBIN = "round-robin"
    BALANCED = "balanced"  # by popularity, as an expert load balancer does


class RooflineForm(StrEnum):
    """What a roofline takes the maximum of bytes and FLOPs over."""

    PER_COMPONENT = "per-component"  # kernels run one after another: a max for each
    WHOLE_STEP = "whole-step"  # one max over the whole step, as some published grids assume


class Hold(StrEnum):
    """The parameter counts that all variants of a design share with the base model."""

    ACTIVE = "active"  # parameters of the experts that a token uses, shared experts included
    TOTAL = "total"  # these, and the parameters of all experts
