"""The values of closed options, and the names of drafters, engines and policies.

Nothing here imports NumPy, so that `--help`, which lists these names, is fast.
"""

from __future__ import annotations

from dataclasses import dataclass
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


class ExpertsOn(StrEnum):
    """Where routed experts are kept and computed."""

    GPU = "gpu"
    CPU = "cpu"  # in main memory


class RooflineForm(StrEnum):
    """What a roofline takes the maximum of bytes and FLOPs over."""

    PER_COMPONENT = "per-component"  # kernels run one after another: a max for each
    WHOLE_STEP = "whole-step"  # one max over the whole step, as some published grids assume


class Find(StrEnum):
    """The load of which `simulate --find` finds the largest that meets targets."""

    QPS = "qps"
    CONCURRENCY = "concurrency"


class Hold(StrEnum):
    """The parameter counts that all variants of a design share with the base model."""

    ACTIVE = "active"  # parameters of the experts that a token uses, shared experts included
    TOTAL = "total"  # these, and the parameters of all experts


class Router(StrEnum):
    """How requests are sent to data-parallel ranks."""

    ROUND_ROBIN = "round-robin"  # in turn
    LEAST_REQUESTS = "least-requests"  # to the rank that has the fewest, running or waiting
    PREFIX = "prefix"  # to the rank whose cache has most of the prompt


class Scheduling(StrEnum):
    """The order in which waiting requests are admitted, as vLLM's `--scheduling-policy`."""

    FCFS = "fcfs"  # in order of arrival
    PRIORITY = "priority"  # the lowest priority value first


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterKind:
    """A kind of drafter, as `--drafter` takes it."""

    name: str
    detail: str = ""  # what follows the name, as the help shows it: "[:CONFIG]" may, ":MODEL" must; "": nothing
    ranked: bool = False  # tried by `--drafter all`

    @property
    def needs_detail(self) -> bool:
        return self.detail.startswith(":")


#: `catalog/drafters.py` builds each kind, and `catalog/acceptance.toml` has its default acceptance.
DRAFTERS = {
    kind.name: kind
    for kind in (
        DrafterKind(name="mtp", ranked=True),
        DrafterKind(name="eagle", detail="[:CONFIG]", ranked=True),
        DrafterKind(name="dflash", detail="[:CONFIG]", ranked=True),
        DrafterKind(name="dspark", detail="[:CONFIG]"),
        DrafterKind(name="ssd", detail="[:INNER@HIT]"),
        DrafterKind(name="model", detail=":MODEL"),
        DrafterKind(name="ngram", ranked=True),
        DrafterKind(name="free"),
    )
}
#: `formats/` writes the configuration of each.
ENGINES = ("vllm", "sglang", "trtllm", "llamacpp", "mlx")
#: `simulator/policies.py` builds each.
POLICIES = (
    "none",
    "off",
    "fixed:K",
    "schedule",
    "one-width",
    "gate",
    "controller",
    "oracle",
    "vllm-adaptive",
    "sglang",
    "turbospec",
    "cascade",
)
#: `simulator/fleet/run.py` builds each.
FLEET_POLICIES = ("none", "off", "fixed:K", "best-fixed", "vote", "each-rank")
