"""What a step reads from main memory at each depth: distinct experts decide there more than anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.prices.model import StepPrice
from specmargin.prices.work import Component
from specmargin.step import FloatArray, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReads:
    """By depth from 0, at one batch."""

    batch: int
    experts: FloatArray  # distinct ones of a MoE layer
    bytes: FloatArray  # read from main memory per step
    seconds: FloatArray  # of that, and of the link
    share: FloatArray  # of the step


def host_reads(pricer: Pricer, batch: int, max_depth: int) -> HostReads | None:
    """None where a step reads nothing from main memory."""
    scenario = pricer.scenario
    alone = scenario.device.processor is not None
    if not scenario.architecture.is_moe or (scenario.offload is None and not alone):
        return None
    step = Step.uniform(batch=batch, depth=np.arange(max_depth + 1.0), context=scenario.context)
    price, experts = pricer.verify(step), pricer.distinct_experts(step)
    there = (Component.ROUTED_EXPERTS,) if alone else (Component.HOST_EXPERTS, Component.HOST_LINK)
    seconds = _sum(price, there, "seconds")
    return HostReads(
        batch=batch,
        experts=np.zeros(step.positions.shape) if experts is None else experts,
        bytes=_sum(price, there[:1], "bytes"),
        seconds=seconds,
        share=seconds / price.total_seconds,
    )


def _sum(price: StepPrice, components: tuple[Component, ...], part: str) -> FloatArray:
    lines = [getattr(line, part) for line in price.components if line.component in components]
    return np.asarray(np.sum(np.broadcast_arrays(*lines, price.total_seconds)[:-1], axis=0))
