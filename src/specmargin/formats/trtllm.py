"""TensorRT-LLM: `draft_len_schedule`, a YAML mapping whose keys are upper bounds of batch size.

{4: 4, 8: 2} means 1-4 -> 4, 5-8 -> 2, above -> 0. The smallest key must map to `max_draft_len`, and no depth may
exceed it: a schedule that deepens with batch, often the best one for an MoE model, cannot be written. Then the
nearest one that can, and that is below plain decoding at none of the plan's batches, is used.
(llmapi/llm_args.py, 1.3.0 on)
"""

from __future__ import annotations

import json

import numpy as np

from specmargin.decisions.schedule import DepthTable, Range, Schedule, make_schedule
from specmargin.formats.base import (
    EngineConfig,
    EngineFormat,
    ScheduleRequest,
    drafter_method,
    drafter_model,
    empty_config,
)

_TYPES = {"mtp": "MTP", "eagle": "Eagle3", "dflash": "DFlash", "model": "Draft_Target", "ngram": "NGram"}


def write(request: ScheduleRequest) -> EngineConfig:
    best = make_schedule(request.table, min_gain=request.min_gain)
    schedule = _expressible(request, best)
    empty = empty_config(request, schedule)
    if empty is not None:
        return empty
    note = "TensorRT-LLM requires the deepest draft at the smallest batch: this is the nearest possible schedule"
    model = drafter_model(request)
    lines = [
        "speculative_config:",
        f"  decoding_type: {drafter_method(request, _TYPES, 'TensorRT-LLM')}",
        *([f"  speculative_model: {json.dumps(model)}"] if model else []),
        f"  max_draft_len: {schedule.max_depth}",
        "  draft_len_schedule:",
        *(f"    {entry.last}: {entry.depth}" for entry in _written(schedule)),
    ]
    return EngineConfig(text="\n".join(lines), schedule=schedule, notes=(note,) if schedule != best else ())


def _written(schedule: Schedule) -> list[Range]:
    """Without a trailing depth of 0, which is the engine's default beyond the last key."""
    entries = list(schedule.ranges)
    return entries[:-1] if entries[-1].depth == 0 and len(entries) > 1 else entries


def _expressible(request: ScheduleRequest, best: Schedule) -> Schedule:
    """Among schedules that start at their deepest, the one that loses least over the plan's batches."""
    if best.ranges[0].depth == best.max_depth:
        return best
    candidates = [
        candidate
        for deepest in range(best.max_depth + 1)
        for candidate in _starting_deepest(request.table, deepest, request.min_gain)
    ]
    return max(candidates, key=lambda schedule: (_never_loses(request, schedule), _mean_goodput(request, schedule)))


def _starting_deepest(table: DepthTable, deepest: int, min_gain: float) -> list[Schedule]:
    """Never deeper than `deepest`, and that deep at batch 1 (only there, if necessary)."""
    limited = make_schedule(table.limited(deepest), min_gain=min_gain)
    if limited.ranges[0].depth == deepest:
        return [limited]
    first, *rest = limited.ranges
    forced = [Range(first=1, last=1, depth=deepest)]
    if first.last > 1:
        forced.append(Range(first=2, last=first.last, depth=first.depth))
    return [Schedule(ranges=(*forced, *rest))]


def _never_loses(request: ScheduleRequest, schedule: Schedule) -> bool:
    """Whether every batch of the plan is served at least as fast as with drafting off."""
    rows = [(min(batch, request.table.batches), schedule.depth_at(batch)) for batch in request.batches]
    return all(request.table.relative[b - 1, depth] >= request.table.relative[b - 1, 0] for b, depth in rows)


def _mean_goodput(request: ScheduleRequest, schedule: Schedule) -> float:
    batches = [min(batch, request.table.batches) for batch in request.batches]
    relative = [request.table.relative[batch - 1, schedule.depth_at(batch)] for batch in batches]
    return float(np.mean(np.where(np.isfinite(relative), relative, -1e9)))


FORMAT = EngineFormat(name="trtllm", title="TensorRT-LLM", graph_limit=lambda _: None, write=write)
