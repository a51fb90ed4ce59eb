"""Which schedules an engine can run, as data, and the best of them: the static site chooses by the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np

from specmargin.decisions.schedule import DepthTable, Range, Schedule, make_schedule
from specmargin.decisions.smoothing import smoothed
from specmargin.limits import MAX_BATCH
from specmargin.phrases import fill


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthRule:
    """What limits an engine's schedules. Texts tell the user where a limit costs something; None: no such limit."""

    whole_block: str | None = None  # always the deepest draft
    one_depth: str | None = None  # the same depth at all batches
    never_off: str | None = None  # never depth 0
    deepest_first: str | None = None  # no batch has a deeper draft than batch 1
    ends: tuple[int, ...] = ()  # the depth changes only after these batches, and after any beyond the last of them
    beyond: Literal["", "keeps", "stops"] = ""  # what is written for batches beyond the table; "": nothing
    entry: str = ""  # how a range of depths is written; `key`: the end of `ends` to which its first batch belongs


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    schedule: Schedule
    limits: tuple[str, ...]  # what the engine cannot express


def choose(rule: DepthRule, table: DepthTable, batches: tuple[int, ...], min_gain: float) -> Chosen:
    """The best schedule under the rule. `batches`: those of the plan, by which schedules are compared."""
    if rule.whole_block is not None:
        deepest = table.speedup_by_batch_depth.shape[1] - 1
        return Chosen(schedule=Schedule.fixed(deepest, last=table.largest), limits=(rule.whole_block,))
    if rule.one_depth is not None:
        fixed = fixed_schedule(table, batches)
        return Chosen(schedule=fixed, limits=(rule.one_depth + _lost(table, batches, fixed.max_depth),))
    beyond_ends = table.batches[table.batches > rule.ends[-1]].tolist() if rule.ends else []
    ends = [*rule.ends, *beyond_ends] if rule.ends else None
    best = make_schedule(table, min_gain=min_gain, boundaries=ends)
    limits = []
    if rule.never_off is not None:
        limits += [rule.never_off] if best.stops else []
        table = always_drafting(table)
        best = make_schedule(table, min_gain=min_gain, boundaries=ends)
    schedule, first_depth = best, None
    if rule.deepest_first is not None:
        schedule = _deepest_first(table, batches, best, min_gain)
        first_depth = schedule.ranges[0].depth
        limits += [rule.deepest_first] if first_depth != best.max_depth else []
    schedule = smoothed(schedule, table, batches, min_gain=min_gain, boundaries=ends, first_depth=first_depth)
    return Chosen(schedule=schedule, limits=tuple(limit for limit in limits if limit))


def fixed_schedule(table: DepthTable, batches: tuple[int, ...]) -> Schedule:
    """The one depth that is best on average over the plan's batches, among depths that lose at none of them.

    If every depth loses somewhere, the best on average. Steps beyond the largest CUDA graph count at their price.
    """
    speedup = table.at(batches).speedup_by_batch_depth.copy()
    speedup[:, 0] = 1.0  # speculation left out
    never_loses = np.asarray((speedup >= 1.0).all(axis=0))
    mean = np.log(speedup).mean(axis=0)
    candidates = never_loses if never_loses[1:].any() else np.ones_like(never_loses)
    depth = int(np.where(candidates, mean, -np.inf).argmax())
    return Schedule.fixed(depth, last=table.largest)


def _lost(table: DepthTable, batches: tuple[int, ...], depth: int) -> str:
    """Where one depth loses most against the best depth of each batch."""
    speedup = table.at(batches).speedup_by_batch_depth.copy()
    speedup[:, 0] = 1.0
    percent = np.floor(100.0 * (speedup.max(axis=1) / speedup[:, depth] - 1.0) + 0.5).astype(np.int64)
    worst = int(percent.argmax())
    lost = f"; the best depth of each batch would be up to {percent[worst]}% faster (batch {batches[worst]})"
    return lost if percent[worst] > 0 else ""


def always_drafting(table: DepthTable) -> DepthTable:
    """Without depth 0, for an engine that cannot go there."""
    allowed = table.allowed_by_batch_depth.copy()
    allowed[:, 0] &= ~allowed[:, 1:].any(axis=1)
    return replace(table, allowed_by_batch_depth=allowed)


def pays(table: DepthTable, batches: tuple[int, ...], schedule: Schedule) -> bool:
    """Whether the schedule beats plain decoding at one of the plan's batches."""
    depths = schedule.depths_at(batches)
    drafting = depths > 0
    speedup = table.at(batches).speedup_by_batch_depth[np.arange(depths.size), depths]
    return bool((speedup[drafting] > 1.0).any())


def _deepest_first(table: DepthTable, batches: tuple[int, ...], best: Schedule, min_gain: float) -> Schedule:
    """Among schedules that start at their deepest, the fastest at the plan's batches that is below off at none."""
    if best.ranges[0].depth == best.max_depth:
        return best
    candidates = [
        make_schedule(table.limited(deepest), min_gain=min_gain, first_depth=deepest)
        for deepest in range(best.max_depth + 1)
        if deepest or table.allowed_by_batch_depth[:, 0].any()
    ]
    speedup = table.at(batches).speedup_by_batch_depth

    def merit(schedule: Schedule) -> tuple[bool, float]:
        chosen = speedup[np.arange(len(batches)), schedule.depths_at(batches)]
        return bool((chosen >= speedup[:, 0]).all()), float(np.log(chosen).mean())

    return max(candidates, key=merit)


def slots(rule: DepthRule, schedule: Schedule, hurdle_by_depth: Sequence[float]) -> dict[str, object]:
    """What fills the slots of a setting's text."""
    depth, ranges = schedule.max_depth, schedule.ranges
    if rule.beyond and ranges[-1].depth == 0:
        ranges = ranges[:-1]  # beyond the last entry drafting is off anyway
    keys = [next((end for end in rule.ends if end >= each.first), each.first) for each in ranges]
    entries = (fill(rule.entry, asdict(each) | {"key": key}) for each, key in zip(ranges, keys, strict=True))
    hurdle = hurdle_by_depth[depth - 1] if 0 < depth <= len(hurdle_by_depth) else 0.0
    return {
        "depth": depth,
        "positions": depth + 1,
        "p_min": f"{min(max(hurdle, 0.0), 0.99):.2f}",
        "entries": ", ".join(entries),
    }


def extended(schedule: Schedule, rule: DepthRule) -> Schedule:
    """The schedule as the engine reads it, up to any batch."""
    last = schedule.ranges[-1]
    if rule.beyond == "keeps":
        return Schedule(ranges=(*schedule.ranges[:-1], replace(last, last=MAX_BATCH)))
    if rule.beyond == "stops" and last.depth > 0 and last.last < MAX_BATCH:
        return Schedule(ranges=(*schedule.ranges, Range(first=last.last + 1, last=MAX_BATCH, depth=0)))
    return schedule
