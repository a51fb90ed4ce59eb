"""TensorRT-LLM: `draft_len_schedule`, a YAML mapping from batch size to depth whose meaning changed between releases.

From 1.3.0rc8 on (PR 10860, in the release notes of that candidate) keys are upper bounds: {4: 4, 8: 2} means 1-4 -> 4,
5-8 -> 2, above -> 0. The smallest key must map to `max_draft_len`. At depth 0 a drafter's own cache is not written, and
acceptance collapses once drafting resumes (PR 16888, open, floors the depth at 1). So depth 0 is written only for
n-gram drafts, which keep no state; other schedules end with a key above every batch. The first candidate has schedules
for EAGLE-3 and n-gram drafts; PR 12262 added MTP, DFlash and draft models. DSpark has no schedule.

Before that, from 1.2.0 on (PR 8194), keys are lower bounds: {1: 4, 5: 2} means 1-4 -> 4, above -> 2. Key 1 must be
there and map to `max_draft_len`, and only n-gram drafts and separate draft models follow the schedule (that PR's
test_draft_len_schedule.py).

In both, no depth may exceed `max_draft_len`: a schedule that deepens with batch, often the best one for an MoE model,
cannot be written. Then the fastest one that can, and that is below depth 0 at none of the plan's batches, is used.
Under attention DP each rank looks up its own number of requests, which differ: then only `max_draft_len` is written.
(llmapi/llm_args.py)
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from specmargin.decisions.plan import MAX_BATCH
from specmargin.decisions.schedule import Range, Schedule, make_schedule
from specmargin.formats.base import (
    EngineConfig,
    EngineFormat,
    ScheduleRequest,
    always_drafting,
    drafter_method,
    drafter_model,
    empty_config,
    fixed_schedule,
)
from specmargin.formats.releases import Releases, release
from specmargin.modes import Parallel

_TYPES = {
    "mtp": "MTP",
    "eagle": "Eagle3",
    "dflash": "DFlash",
    "dspark": "DSpark",
    "model": "Draft_Target",
    "ngram": "NGram",
}


RELEASES = Releases(title="TensorRT-LLM", first="1.2.0", last="1.4")
_UPPER_BOUNDS = "1.3.0rc8"
_LATER = "1.3.0rc9"  # at the earliest: PR 12262 is younger than rc8
_DSPARK = "1.3.0rc20"  # at the earliest: PR 15808 is younger than rc19
STATELESS = ("ngram",)  # nothing is lost where these do not draft
_LOWER_BOUND_KINDS = ("ngram", "model")
_UPPER_BOUND_KINDS = ("ngram", "eagle")  # from the first candidate on; others later
NEAREST = "batch 1 must have the deepest draft"
STARVED = "never depth 0: TensorRT-LLM PR 16888"


def write(request: ScheduleRequest) -> EngineConfig:
    upper = request.release is None or request.release >= release(_UPPER_BOUNDS)
    limit = _one_depth(request, upper=upper)
    best = fixed_schedule(request) if limit else make_schedule(request.table, min_gain=request.min_gain)
    warm = not limit and upper and request.drafter_kind not in STATELESS
    if warm:
        request = replace(request, table=always_drafting(request.table))
        kept = make_schedule(request.table, min_gain=request.min_gain)
    else:
        kept = best
    schedule = kept if limit else _expressible(request, kept)
    empty = empty_config(request, schedule)
    if empty is not None:
        return empty
    if not limit and upper:
        schedule = _to_the_end(schedule) if warm else _ending_off(schedule)
    limits = [limit] if limit else [STARVED] if warm and best.stops else []
    if not limit and schedule.ranges[0].depth != kept.max_depth:
        limits.append(NEAREST)
    return EngineConfig(
        text=_yaml(request, schedule, _entries(schedule, upper=upper) if not limit else ""),
        schedule=schedule,
        needs=_needs(request),
        limits=tuple(limits),
    )


def _one_depth(request: ScheduleRequest, *, upper: bool) -> str:
    """Why there is one depth for all batches; "" where there is a schedule."""
    if request.parallel is Parallel.DP_EP:
        return "one depth for all batches: under attention DP each rank has its own batch"
    if upper and request.drafter_kind == "dspark":
        return "one depth for all batches: TensorRT-LLM has no schedule for DSpark"
    first = _UPPER_BOUNDS if request.drafter_kind in _UPPER_BOUND_KINDS else _LATER
    early = request.release is not None and request.release < release(first)
    if early and (upper or request.drafter_kind not in _LOWER_BOUND_KINDS):
        return f"one depth for all batches: {first} is the first with others for {request.drafter_kind}"
    return ""


def _needs(request: ScheduleRequest) -> str:
    if request.drafter_kind == "dspark":
        return f"{RELEASES.needs(request.release, _DSPARK, what='DSpark drafts')}, with PR 15808"
    if request.release is not None:
        return RELEASES.needs(request.release, RELEASES.first, what="schedule")
    if request.drafter_kind in _UPPER_BOUND_KINDS:
        return RELEASES.needs(None, _UPPER_BOUNDS, what="schedule")
    return f"{RELEASES.needs(None, _LATER, what='schedule')}, with PR 12262"


def _yaml(request: ScheduleRequest, schedule: Schedule, entries: str) -> str:
    model = drafter_model(request)
    lines = [
        "speculative_config:",
        f"  decoding_type: {drafter_method(request, _TYPES, 'TensorRT-LLM')}",
        *([f"  speculative_model: {json.dumps(model)}"] if model else []),
        f"  max_draft_len: {schedule.max_depth}",
        *([f"  draft_len_schedule: {{{entries}}}"] if entries else []),
    ]
    return "\n".join(lines)


def _entries(schedule: Schedule, *, upper: bool) -> str:
    """Lower bounds, or upper bounds without a trailing depth of 0, which is the default beyond the last key."""
    if not upper:
        return ", ".join(f"{entry.first}: {entry.depth}" for entry in schedule.ranges)
    ranges = schedule.ranges[:-1] if schedule.ranges[-1].depth == 0 else schedule.ranges
    return ", ".join(f"{entry.last}: {entry.depth}" for entry in ranges)


def _to_the_end(schedule: Schedule) -> Schedule:
    """The last depth at every batch, so that the engine has no batch beyond the last key."""
    return Schedule(ranges=(*schedule.ranges[:-1], replace(schedule.ranges[-1], last=MAX_BATCH)))


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
        if deepest or request.table.allowed_by_batch_depth[:, 0].any()
    ]
    return max(candidates, key=lambda schedule: _merit(request, schedule))


def _merit(request: ScheduleRequest, schedule: Schedule) -> tuple[bool, float]:
    speedup, depths = request.planned.speedup_by_batch_depth, schedule.depths_at(request.batches)
    chosen = speedup[np.arange(depths.size), depths]
    return bool((chosen >= speedup[:, 0]).all()), float(np.log(chosen).mean())


FORMAT = EngineFormat(name="trtllm", title="TensorRT-LLM", graph_limit=lambda _: None, write=write, releases=RELEASES)
