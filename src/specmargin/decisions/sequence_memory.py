"""What one sequence holds on each GPU, with drafts and without: why fewer sequences fit when an engine speculates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specmargin.architecture.types import LayerGroup, LinearAttention
from specmargin.decisions.pricer import Pricer
from specmargin.prices.memory import sequence_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMemory:
    """Bytes of one sequence on one GPU."""

    kv_bytes: float  # of the target, with room for the draft tokens
    state_bytes: float  # recurrent states of the target: one per position of a round
    drafter_bytes: float  # KV and states of the drafter

    @property
    def total_bytes(self) -> float:
        return self.kv_bytes + self.state_bytes + self.drafter_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMemory:
    """One GPU with room for drafts of `depth`, and the same GPU without speculation."""

    depth: int
    context: float
    usable_bytes: float
    weight_bytes: float
    drafter_weight_bytes: float
    plain: SequenceMemory
    drafting: SequenceMemory
    largest_batch: int
    no_spec_largest_batch: int

    @property
    def added_bytes(self) -> float:
        """That drafts cost per sequence."""
        return self.drafting.total_bytes - self.plain.total_bytes


def draft_memory(pricer: Pricer, depth: int) -> DraftMemory:
    """`depth`: the deepest draft that the engine reserves memory for."""
    return DraftMemory(
        depth=depth,
        context=pricer.scenario.context,
        usable_bytes=pricer.memory.usable_bytes,
        weight_bytes=pricer.memory.weight_bytes,
        drafter_weight_bytes=pricer.memory.drafter_bytes,
        plain=_sequence(pricer, None),
        drafting=_sequence(pricer, depth),
        largest_batch=pricer.largest_batch(depth),
        no_spec_largest_batch=pricer.no_spec_largest_batch,
    )


def _sequence(pricer: Pricer, depth: int | None) -> SequenceMemory:
    groups = pricer.scenario.architecture.groups
    states = [group for group in groups if isinstance(group.layer.attention, LinearAttention)]
    kv_bytes = _held(pricer, (group for group in groups if group not in states), depth)
    state_bytes = _held(pricer, states, depth)
    total = pricer.sequence_bytes(depth)
    return SequenceMemory(kv_bytes=kv_bytes, state_bytes=state_bytes, drafter_bytes=total - kv_bytes - state_bytes)


def _held(pricer: Pricer, groups: Iterable[LayerGroup], depth: int | None) -> float:
    scenario = pricer.scenario
    kv, layout = scenario.kv_precision, scenario.layout
    held = sequence_bytes(groups, scenario.context, layout=layout, kv=kv, depth=depth or 0)
    return float(held) * layout.stage_factor(scenario.architecture.layers)
