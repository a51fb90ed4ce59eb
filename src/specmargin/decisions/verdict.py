"""The plan in three sentences: what to do and the gain, where it pays, and what would change the answer.

A fourth says how sure that is, if the ranges of the rows are known and the first sentence does not say it already.

The sentences are data (`verdict.toml`), which the static site fills too; this module finds their values.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from specmargin.decisions.advice import Advice, Judgement
from specmargin.decisions.payoff import Spans
from specmargin.decisions.plan import Plan
from specmargin.decisions.rows import PlanRow
from specmargin.phrases import listed, say

PHRASES: dict[str, list[str]] = tomllib.loads((files("specmargin.decisions") / "verdict.toml").read_text("utf-8"))
_LONG_SPANS, _LONG_STEPS = 3, 4  # lists of more are shortened
MUCH_LESS = 0.8  # of the sequences that fit without drafts


def verdict(plan: Plan, judgement: Judgement | None = None, *, unsupported: str = "") -> str:
    """What to do, first. Without a `judgement`, by the best estimates alone.

    `unsupported`: why no engine can run the plan's drafter; the plan is then what it would give.
    """
    values = _subject(plan) | _gain(plan) | _where(plan, plan.paying) | _graph_free(plan)
    values |= _losing(plan) | _memory(plan) | _change(plan)
    values |= {"unsupported": unsupported or None, "supported": not unsupported, "pays": plan.pays}
    if judgement is not None:
        values |= _certainty(plan, judgement)
    return say("verdict", PHRASES, values) or ""


def _certainty(plan: Plan, judgement: Judgement) -> dict[str, Any]:
    sure = judgement.range
    if not sure.inputs or not plan.pays:
        return {}
    unknown, clearly = sure.largest_unknown, judgement.surely_paying
    uncertain = judgement.advice is Advice.UNCERTAIN
    return {
        "uncertain": uncertain,
        "clear": not uncertain,
        "judged_batch": judgement.row.batch,
        "judged_speedup": judgement.row.speedup,
        "low": sure.low,
        "high": sure.high,
        "unknown": unknown and unknown.phrase,
        "narrow": unknown and unknown.narrow,
        "partly_clear": bool(clearly) and clearly != plan.paying,
        "clear_spans": _spans(clearly),
        "nowhere_clear": not clearly,
    }


def _subject(plan: Plan) -> dict[str, Any]:
    scenario = plan.scenario
    return {
        "model": scenario.architecture.name,
        "several_gpus": scenario.layout.gpus if scenario.layout.gpus > 1 else None,
        "gpu": scenario.device.name,
        "drafter": scenario.drafter.name,
        "context": scenario.context,
    }


def _gain(plan: Plan) -> dict[str, Any]:
    rows = [row for row in plan.rows if row.fits]
    if not rows:
        return {"none_fits": True}
    first, best = rows[0], plan.best
    capped = any(row.depth == plan.setting.max_depth for row in rows) and plan.scenario.drafter.max_depth is None
    alone = max((row for row in rows if row.better_depth), key=lambda row: row.better_speedup or 0.0, default=None)
    return {
        "first_speedup": first.speedup,
        "first_batch": first.batch,
        "best_speedup": best.speedup if best.batch != first.batch else None,
        "best_batch": best.batch,
        "steps": _steps(plan, rows),
        "capped_depth": plan.setting.max_depth if capped else None,
        "alone_depth": alone and alone.better_depth,  # would pay by itself, at one batch
        "alone_speedup": alone and alone.better_speedup,
        "alone_batch": alone and alone.batch,
    }


def _steps(plan: Plan, rows: list[PlanRow]) -> str:
    """Up to the largest batch that fits."""
    if plan.setting.schedule is None:
        steps = [(row.batch, row.depth) for row in rows]
    else:
        ranges = [entry for entry in plan.setting.schedule.ranges if entry.first <= max(plan.largest_batch, 1)]
        steps = [(entry.last, entry.depth) for entry in ranges]
    steps = [step for i, step in enumerate(steps) if i + 1 == len(steps) or steps[i + 1][1] != step[1]]
    items = [{"last": last, "depth": depth, "off": depth == 0, "single": depth == 1} for last, depth in steps]
    return listed("step", items, PHRASES, between=", ", most=_LONG_STEPS)


def _where(plan: Plan, spans: Spans) -> dict[str, Any]:
    return {
        "everywhere": spans == ((1, plan.priced_up_to),),
        "more_fit": plan.largest_batch > plan.priced_up_to,
        "priced_up_to": plan.priced_up_to,
        "largest_batch": plan.largest_batch,
        "one_fits": plan.largest_batch == 1,
        "spans": _spans(spans),
    }


def _graph_free(plan: Plan) -> dict[str, Any]:
    """Where it could pay with a CUDA graph for every step, if that reaches further: to where one draft token each
    exceeds the largest graph."""
    limit = plan.setting.graph_limit
    last, further = ((spans[-1][1] if spans else 0) for spans in (plan.paying, plan.graph_free_paying))
    if limit is None or further <= last or 2 * further <= limit:
        return {}
    where = say("where", PHRASES, _where(plan, plan.graph_free_paying))
    return {"graph_limit": limit, "graph_free": where}


def _spans(spans: Spans) -> str | None:
    items = [{"low": low, "high": high, "one": low == high} for low, high in spans]
    return listed("span", items, PHRASES, between=" and ", most=_LONG_SPANS) or None


def _losing(plan: Plan) -> dict[str, Any]:
    if plan.loss is None:
        return {}
    edges = [batch for entry in plan.loss.spans for batch in entry]
    return {
        "losing_spans": _spans(plan.loss.spans),
        "off_there": not plan.setting.depths_at(plan.pricer, edges).any(),
        "worst_speedup": plan.loss.worst_speedup,
        "worst_batch": plan.loss.worst_batch,
    }


def _memory(plan: Plan) -> dict[str, Any]:
    return {
        "fewer_fit": plan.largest_batch < MUCH_LESS * plan.no_spec_largest_batch,
        "no_spec_largest_batch": plan.no_spec_largest_batch,
        "faster_without": plan.no_spec_peak_tokens_per_second > plan.peak_tokens_per_second,
        "no_spec_peak_tokens_per_second": plan.no_spec_peak_tokens_per_second,
        "peak_tokens_per_second": plan.peak_tokens_per_second,
    }


def _change(plan: Plan) -> dict[str, Any]:
    row = next((row for row in plan.rows if row.fits), plan.rows[0])
    return {
        "no_drafts": plan.setting.max_depth == 0,
        "row_off": row.depth == 0,
        "row_batch": row.batch,
        "switch_acceptance": plan.switch_acceptance,
        "first_acceptance": plan.scenario.survival.first_acceptance,
        "stops_at_context": plan.stops_at_context,
    }
