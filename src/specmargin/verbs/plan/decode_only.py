"""`plan --decode-only`: the decode instance of a disaggregated pair, and what it takes over from the prefill instance.

Rounds have no prompts in them. A request comes with the KV of its prompt, the drafter's included: engines run the same
drafter on both instances, so the prefill instance pays for the drafter reading the prompt. The decode instance computes
the last token of a prompt again, as vLLM's connectors do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specmargin.decisions.plan import Plan
from specmargin.decisions.scenario import Scenario
from specmargin.errors import ScenarioError
from specmargin.formats import find_engine
from specmargin.words import amount, duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What one request brings."""

    prompt_tokens: int
    kv_bytes_per_gpu: float
    drafter_prefill_seconds: float  # on the prefill instance, if it has the same layout
    transfer_seconds: float | None  # over the network of each GPU; None where the device has none
    is_published: bool = False  # the network is that of --fabric; else the datasheet's

    @classmethod
    def of(cls, plan: Plan, prompt_tokens: int) -> Arrival:
        pricer, fabric = plan.pricer, plan.scenario.device.fabric
        moved = pricer.prompt_bytes(prompt_tokens, speculating=plan.held_depth > 0)
        network = fabric.network_bytes_per_second
        return cls(
            prompt_tokens=prompt_tokens,
            kv_bytes_per_gpu=moved,
            drafter_prefill_seconds=pricer.drafter_prefill_seconds(prompt_tokens) if plan.held_depth else 0.0,
            transfer_seconds=None if network is None else moved / network,
            is_published=fabric.network is not None,
        )

    @property
    def text(self) -> str:
        moved = f"decode instance: each request brings {amount(self.kv_bytes_per_gpu, 'B')} of KV per GPU"
        if self.transfer_seconds is not None:
            rate = "the published rate of --fabric" if self.is_published else "the datasheet's rate"
            moved += f" ({duration(self.transfer_seconds)} over its network, at {rate})"
        if not self.drafter_prefill_seconds:
            return f"{moved}."
        return f"{moved}; the drafter reads prompts on the prefill instance ({duration(self.drafter_prefill_seconds)})."


def check_decode_only(scenario: Scenario) -> None:
    engine = find_engine(scenario.engine)
    refusal = engine.decode_refusal(scenario.layout)
    if refusal is not None:
        raise ScenarioError(f"--decode-only: {refusal}; leave it out")


def arrival_of(plan: Plan, isl: int | None) -> Arrival:
    """At the prompt of the load; else at the plan's context."""
    return Arrival.of(plan, round(plan.scenario.context) if isl is None else isl)


def arrival_values(arrival: Arrival) -> dict[str, Any]:
    return {
        "prompt_tokens": arrival.prompt_tokens,
        "kv_bytes_per_gpu": arrival.kv_bytes_per_gpu,
        "transfer_seconds": arrival.transfer_seconds,
        "drafter_prefill_seconds": arrival.drafter_prefill_seconds,
    }
