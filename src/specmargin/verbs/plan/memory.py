"""What drafts cost in memory, per sequence and GPU: in `plan --explain` and the JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from specmargin.answers.blocks import Block, Line, Table, bold, left, right
from specmargin.decisions.plan import Plan
from specmargin.decisions.sequence_memory import DraftMemory, draft_memory

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def memory_of(plan: Plan) -> DraftMemory:
    """With room for the plan's deepest draft; for one of 1 where it drafts nothing."""
    return draft_memory(plan.pricer, plan.held_depth or 1)


def memory_values(plan: Plan) -> dict[str, Any]:
    memory = memory_of(plan)
    values = asdict(memory) | {"added_bytes_per_sequence": memory.added_bytes}
    for side in ("plain", "drafting"):
        values[side]["total_bytes"] = getattr(memory, side).total_bytes
    return values


def memory_blocks(plan: Plan) -> Iterator[Block]:
    memory = memory_of(plan)
    plain, drafting = memory.plain, memory.drafting
    lines = (
        ("KV cache", plain.kv_bytes, drafting.kv_bytes),
        ("recurrent states", plain.state_bytes, drafting.state_bytes),
        ("drafter's KV cache", plain.drafter_bytes, drafting.drafter_bytes),
        ("one sequence", plain.total_bytes, drafting.total_bytes),
        ("drafter's weights", 0.0, memory.drafter_weight_bytes),
    )
    rows = [_cells(name, before, after) for name, before, after in lines if after > 0.0]
    over = "" if plan.scenario.layout.gpus == 1 else " (all GPUs)"
    fits = (memory.no_spec_largest_batch, memory.largest_batch)
    yield bold(f"memory of each GPU, at a context of {memory.context:,.0f}")
    yield Table(
        columns=[*left(""), *right("no speculation", f"drafts of {memory.depth}", "drafts cost")],
        rows=[*rows, [f"sequences that fit{over}", f"{fits[0]:,}", f"{fits[1]:,}", f"{fits[1] - fits[0]:+,}"]],
    )
    room = memory.usable_bytes - memory.weight_bytes
    yield Line(f"{_size(memory.usable_bytes)} usable, {_size(memory.weight_bytes)} weights, {_size(room)} left")


def _cells(name: str, before: float, after: float) -> list[str]:
    added = after - before
    share = f" ({after / before:.1f}×)" if before > 0.0 and after > 1.05 * before else ""
    return [name, _size(before), _size(after), f"+{_size(added)}{share}"]


def _size(size: float) -> str:
    for unit, name in _UNITS:
        if abs(size) >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"
