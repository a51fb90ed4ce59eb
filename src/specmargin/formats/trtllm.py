"""TensorRT-LLM: `draft_len_schedule`, a YAML mapping whose keys are upper bounds of batch size.

{4: 4, 8: 2} means 1-4 -> 4, 5-8 -> 2, above -> 0. The smallest key must map to `max_draft_len`, and no depth may
exceed it: a schedule that deepens with batch, often the best one for an MoE model, cannot be written. Then the
fastest one that can, and that is below depth 0 at none of the plan's batches, is used.
(llmapi/llm_args.py, 1.3.0 on) Under attention DP each rank looks up its own number of requests, which differ: then
only `max_draft_len` is written.
"""

from __future__ import annotations

import json

import numpy as np

from specmargin.decisions.plan import MAX_BATCH
from specmargin.decisions.schedule import Range, Schedule, make_schedule
from specmargin.formats.base import (
    EngineConfig,
    EngineFormat,
    ScheduleRequest,
    drafter_method,
    drafter_model,
    empty_config,
    fixed_schedule,
)
from specmargin.modes import Parallel

_TYPES = {
    "mtp": "MTP",
    "eagle": "Eagle3",
    "dflash": "DFlash",
    "dspark": "DSpark",
    "model": "Draft_Target",
    "ngram": "NGram",
}


def write(request: ScheduleRequest) -> EngineConfig:
    adaptive = request.parallel is not Parallel.DP_EP
    best = make_schedule(request.table, min_gain=request.min_gain) if adaptive else fixed_schedule(request)
    schedule = _expressible(request, best) if adaptive else best
    empty = empty_config(request, schedule)
    if empty is not None:
        return empty
    nearest = "the nearest possible schedule: TensorRT-LLM needs the deepest draft at batch 1"
    model = drafter_model(request)
    lines = [
        "speculative_config:",
        f"  decoding_type: {drafter_method(request, _TYPES, 'TensorRT-LLM')}",
        *([f"  speculative_model: {json.dumps(model)}"] if model else []),
        f"  max_draft_len: {schedule.max_depth}",
        *([f"  draft_len_schedule: {{{_written(schedule)}}}"] if adaptive else []),
    ]
    notes = [nearest] if schedule != best else []
    if not adaptive:
        notes.append("one depth for all batches: under attention DP each rank would look up its own batch")
    return EngineConfig(
        text="\n".join(lines),
        schedule=_ending_off(schedule) if adaptive else schedule,
        needs="TensorRT-LLM 1.3 or later",
        notes=tuple(notes),
    )


def _written(schedule: Schedule) -> str:
    """Without a trailing depth of 0, which is the engine's default beyond the last key."""
    entries = schedule.ranges[:-1] if schedule.ranges[-1].depth == 0 else schedule.ranges
    return ", ".join(f"{entry.last}: {entry.depth}" for entry in entries)


def _ending_off(schedule: Schedule) -> Schedule:
    """The schedule as the engine reads it: beyond its last key it does not draft."""
    last = schedule.ranges[-1]
    if last.depth == 0 or last.last >= MAX_BATCH:
        return schedule
    return Schedule(ranges=(*schedule.ranges, Range(first=last.last + 1, last=MAX_BATCH, depth=0)))


def _expressible(request: ScheduleRequest, best: Schedule) -> Schedule:
    """Among schedules that start at their deepest, the fastest at the plan's batches that is below off at none."""
    if best.ranges[0].depth == best.max_depth:
        return best
    table = request.table
    candidates = [
        make_schedule(table.limited(deepest), min_gain=request.min_gain, first_depth=deepest)
        for deepest in range(best.max_depth + 1)
    ]
    return max(candidates, key=lambda schedule: _merit(request, schedule))


def _merit(request: ScheduleRequest, schedule: Schedule) -> tuple[bool, float]:
    speedup, depths = request.planned.speedup_by_batch_depth, schedule.depths_at(request.batches)
    chosen = speedup[np.arange(depths.size), depths]
    return bool((chosen >= speedup[:, 0]).all()), float(np.log(chosen).mean())


FORMAT = EngineFormat(name="trtllm", title="TensorRT-LLM", graph_limit=lambda _: None, write=write)
