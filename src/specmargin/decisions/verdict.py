"""The plan in at most four lines: the answer, then one fact per line, those that decide first.

The lines are data (`verdict.toml`), which the static site fills too; this module finds their values. `details` are the
longer facts, for `--explain` and the JSON.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from specmargin.acceptance.survival import break_even_acceptance
from specmargin.decisions.advice import Advice, Judgement
from specmargin.decisions.certainty import ACCEPTANCE
from specmargin.decisions.payoff import Spans
from specmargin.decisions.plan import Plan
from specmargin.phrases import lines, listed, say

PHRASES: dict[str, list[str]] = tomllib.loads((files("specmargin.decisions") / "verdict.toml").read_text("utf-8"))
MOST_LINES, LONG_SPANS, LONG_STEPS = 4, 2, 3  # lists of more are summarised
MOSTLY = 2.0 / 3.0  # of the batches: a gain at so many is one with exceptions
_DETAILS = (
    *("pays_where", "clear_where", "loses_where", "graphs", "sequences", "peak"),
    *("acceptance", "change_of_depth", "context_limit", "deepest", "next"),
)
_GAINS = (
    *(Advice.SPECULATE, Advice.UP_TO_BATCH, Advice.UNCERTAIN, Advice.UNSUPPORTED),
    *(Advice.SLOWER_FIRST_TOKEN, Advice.MISSES_TARGET, Advice.OVERLOADED),
)
_ESTIMATED = (Advice.MISSES_TARGET, Advice.SLOWER_FIRST_TOKEN)  # the first line says what stands against the gain


def extrapolated(plan: Plan) -> str | None:
    """Of drafts deeper than a curve of acceptance; one value is meant for every depth."""
    known, schedule = plan.scenario.survival.by_depth.size, plan.setting.schedule
    last = 0 if schedule is None else schedule.max_depth
    return say("extrapolated", PHRASES, {"known_depth": known, "last_depth": last}) if 1 < known < last else None


def verdict(
    plan: Plan,
    judgement: Judgement,
    *,
    advice: Advice | None = None,
    unsupported: str = "",
    service: Mapping[str, Any] | None = None,
    latency: Mapping[str, Any] | None = None,
    at_batch: int | None = None,
) -> str:
    """`advice`: of the service, if there is one, whose values then replace those of decode steps.

    `unsupported`: why no engine can run the plan's drafter; the plan is then what it would give. `latency`: of a target
    that is missed. `at_batch`: the batch asked about.
    """
    advice = advice or judgement.advice
    gains, too_large = advice in _GAINS and plan.pays, advice is Advice.NONE_FITS
    uncertain, here = advice is Advice.UNCERTAIN, gains and not (service or unsupported)
    limit = plan.limit if here else None
    short = plan.loses_capacity and limit == plan.largest_batch  # of memory
    decodes_faster = bool(service) and plan.pays and not gains  # and yet the service does not
    values = _judged(plan, judgement) | _ranges(plan, judgement) | _depths(plan, None if uncertain else limit, at_batch)
    told = limit if limit is not None or not here else values["off_above"]  # the flags draft nothing beyond
    values |= dict(latency or {}) | dict(service or {})
    waits_for_room = (values.get("waits") or values.get("queue_grows")) and values["wanted"] > plan.largest_batch
    unknown, rises = judgement.range.largest_unknown, judgement.row.speedup > 1.0
    blurred = uncertain and rises and unknown is not None and unknown.name != ACCEPTANCE  # it would read as a yes
    values |= {
        "too_large": too_large,
        "no_drafts": plan.setting.max_depth == 0,
        "unsupported": (gains and unsupported) or None,
        "gains": gains,
        "fails": not gains,
        "uncertain": uncertain,
        "estimate": gains and (bool(unsupported) or advice in _ESTIMATED),
        "off": judgement.row.speedup if plan.pays and not judgement.drafts else None,
        "limit": told,
        "depth": judgement.row.depth,
        "plural": judgement.row.depth != 1,
        "unsure": judgement.range.spans_one,
        "even": None if decodes_faster or values["alone"] or blurred else values["even"],
        "hopeless": values["hopeless"] and not uncertain,
        "surely": None,
        **(_other_batches(plan, judgement, told, fits=short) if here else {}),
        "elsewhere": at_batch is not None and not gains and plan.pays and not latency,
        "crowded": too_large or waits_for_room or short,
        "nothing": not (plan.setting.max_depth == 0 or plan.pays or too_large or judgement.drafts),
        "drafts": gains and not unsupported,
    }
    if short and not uncertain and values["surely"] is None:  # memory is the answer, not a fact beside it
        values |= {"crowds": True, "estimate": True, "crowded": False}
    return "\n".join(lines("verdict", PHRASES, values, most=MOST_LINES))


def details(plan: Plan, judgement: Judgement) -> list[str]:
    """Where it pays and loses, memory, and what would change the answer."""
    values = _judged(plan, judgement) | _ranges(plan, judgement) | _where(plan) | _graph_free(plan) | _change(plan)
    said = (say(name, PHRASES, values) for name in _DETAILS)
    return [sentence for sentence in said if sentence is not None]


def _judged(plan: Plan, judgement: Judgement) -> dict[str, Any]:
    """Of the row by which the plan is judged, or of the best draft where nothing is drafted."""
    row, sure, unknown = judgement.row, judgement.range, judgement.range.largest_unknown
    refused, fits = bool(sure.inputs) and not judgement.drafts, judgement.advice is not Advice.NONE_FITS
    return {
        "batch": row.batch,
        "factor": row.speedup if sure.inputs and fits else None,
        "low": sure.low,
        "high": sure.high,
        "drafter": plan.scenario.drafter.name,
        "refused": refused,
        "alone": refused and not plan.pays and row.speedup > 1.0,  # by itself, at one batch
        "fewer_fit": plan.largest_batch < plan.no_spec_largest_batch,
        "largest_batch": plan.largest_batch,
        "several": plan.largest_batch != 1,
        "one_fits": plan.largest_batch == 1,
        "several_plain": plan.no_spec_largest_batch != 1,
        "first_batch": plan.rows[0].batch,
        "last_batch": max((row.batch for row in plan.rows if row.fits), default=row.batch),
        "no_spec_largest_batch": plan.no_spec_largest_batch,
        "known": unknown is not None and fits,
        "unknown": unknown and unknown.phrase,
        "narrow": unknown and unknown.narrow,
    } | _acceptance(plan, judgement)


def _acceptance(plan: Plan, judgement: Judgement) -> dict[str, Any]:
    """Used: the constant acceptance with as many accepted tokens, which can be compared with the break-even."""
    row = judgement.row
    depth, even = max(row.depth, 1), row.break_even_acceptance
    used = float(break_even_acceptance(1.0 + float(plan.scenario.survival.up_to(depth).sum()), depth))
    origins = {entry.origin for entry in judgement.range.inputs if entry.name == ACCEPTANCE}
    digits = next((count for count in range(2, 6) if even is None or f"{used:.{count}f}" != f"{even:.{count}f}"), 6)
    return {
        "used": f"{used:.{digits}f}",
        "even": None if even is None else f"{even:.{digits}f}",
        "hopeless": even is None,
        "assumed": "borrowed" in origins,
        "benchmarked": "benchmark" in origins,
    }


def _depths(plan: Plan, limit: int | None, at_batch: int | None) -> dict[str, Any]:
    """What is drafted at every batch that fits, or at the one batch that was asked about.

    `limit`: the last batch that pays; where the flags draft at larger ones too, it is for the server to keep.
    """
    schedule, last = plan.setting.schedule, max(plan.largest_batch, 1)
    by_row = at_batch is not None or len(plan.rows) == 1
    if by_row or schedule is None:
        rows = [row for row in plan.rows if row.fits and at_batch in (None, row.batch)]
        spans = [(row.batch, row.batch, row.depth) for row in rows]
    else:
        spans = [(each.first, min(each.last, last), each.depth) for each in schedule.ranges if each.first <= last]
    steps: list[dict[str, Any]] = []
    for low, high, depth in spans:
        if steps and steps[-1]["depth"] == depth:
            steps[-1]["high"] = high
        else:
            steps.append({"low": low, "high": high, "depth": depth, "plural": depth != 1, "off": depth == 0})
    goes_on = bool(steps) and not (by_row or schedule is None)
    drafted = max((step["high"] for step in steps if not step["off"]), default=0)  # the last batch of a draft
    cap = limit if goes_on and limit is not None and limit < min(drafted, last) else None
    if cap is not None:  # what larger batches would draft is told by nobody: the server is to have none
        steps, goes_on = [step | {"high": min(step["high"], cap)} for step in steps if step["low"] <= cap], False
    stops = goes_on and len(steps) > 1 and steps[-1]["off"]
    depths = [step["depth"] for step in (steps[:-1] if stops else steps)]
    many = len(depths) > LONG_STEPS
    one_or_more = [
        step | {"one": step["low"] == step["high"], "open": goes_on and step is steps[-1] and step["low"] < last}
        for step in steps
    ]
    return {
        "least": min(depths) if many else None,
        "most": max(depths) if many else None,
        "off_above": steps[-1]["low"] - 1 if stops else None,
        "cap": cap,
        "several_cap": cap != 1,
        "every_step": listed("step", one_or_more, PHRASES, between=", "),
    }


def _other_batches(plan: Plan, judgement: Judgement, limit: int | None, *, fits: bool) -> dict[str, Any]:
    """Where the gain is clear, if it is uncertain at the batch of the answer; else where it is not, up to `limit`.

    `fits`: the verdict says how many sequences fit, so that the last batch is told as a number.
    """
    clear, end = judgement.surely_paying, None if fits else plan.priced_up_to
    if judgement.advice is Advice.UNCERTAIN:
        return {"clear_spans": _batches(clear, end)}
    loses = plan.loss is not None and plan.loss.worst_speedup < 1.0 - plan.min_gain
    slower, unsure = (
        tuple((low, min(high, limit or high)) for low, high in spans if low <= (limit or low))
        for spans in (judgement.surely_losing if loses else (), judgement.uncertain)
    )
    surely = _batches(clear, end) if unsure and len(clear) == 1 else None
    last = limit or plan.priced_up_to
    certain = sum(min(high, last) - low + 1 for low, high in clear if low <= last)
    open_end = end is not None and any(high >= end for _, high in (*slower, *unsure))
    mostly = certain >= MOSTLY * last and not open_end
    return {
        "surely": surely,
        "mostly": mostly and bool(slower or unsure),
        "partly": not mostly and bool(slower or unsure),
        "slower_spans": _batches(slower, end),
        "unsure_spans": _batches(unsure, end),
    }


def _ranges(plan: Plan, judgement: Judgement) -> dict[str, Any]:
    """Where it pays, loses, and clearly pays: with an 80% range above 1."""
    clearly, loss = judgement.surely_paying, plan.loss
    found = {
        "paying_batches": _batches(plan.paying),
        "partly_clear": bool(clearly) and clearly != plan.paying,
        "clear_batches": _batches(clearly),
        "nowhere_clear": plan.pays and not clearly,
    }
    if loss is None:
        return found
    (edges, *more) = loss.spans
    return found | {
        "losing_batches": _batches(loss.spans),
        "off_there": not more and not plan.setting.depths_at(plan.pricer, edges).any(),
        "worst_speedup": loss.worst_speedup,
        "worst_batch": loss.worst_batch,
    }


def _batches(spans: Spans, end: int | None = None) -> str | None:
    """`end`: the largest batch that counts; what reaches it goes on as far as sequences fit."""
    if not spans:
        return None
    items = [
        {"low": low, "high": high, "one": low == high, "later": n > 0, "open": end is not None and high >= end > low}
        for n, (low, high) in enumerate(spans)
    ]
    ends = {"scattered": len(spans) > LONG_SPANS, "low": spans[0][0], "high": spans[-1][1]}
    return say("batches", PHRASES, ends | {"spans": listed("span", items, PHRASES, between=" and ")})


# --- of the details alone ---


def _where(plan: Plan) -> dict[str, Any]:
    capped = any(row.depth == plan.setting.max_depth for row in plan.rows if row.fits)
    return {
        "everywhere": plan.paying == ((1, plan.priced_up_to),),
        "more_fit": plan.largest_batch > plan.priced_up_to,
        "priced_up_to": plan.priced_up_to,
        "peak_tokens_per_second": plan.peak_tokens_per_second,
        "no_spec_peak_tokens_per_second": plan.no_spec_peak_tokens_per_second,
        "capped_depth": plan.setting.max_depth if capped and plan.scenario.drafter.max_depth is None else None,
    }


def _graph_free(plan: Plan) -> dict[str, Any]:
    """Where it could pay with a CUDA graph for every step, if that reaches further: to where one draft token each
    exceeds the largest graph."""
    limit = plan.setting.graph_limit
    last, further = ((spans[-1][1] if spans else 0) for spans in (plan.paying, plan.graph_free_paying))
    if limit is None or further <= last or 2 * further <= limit:
        return {}
    return {"graph_limit": limit, "graph_free_last": further}


def _change(plan: Plan) -> dict[str, Any]:
    row = next((row for row in plan.rows if row.fits), plan.rows[0])
    return {
        "stops_at_context": plan.stops_at_context,
        "drafts_considered": plan.setting.max_depth > 0,
        "row_off": row.depth == 0,
        "row_batch": row.batch,
        "switch_acceptance": plan.switch_acceptance,
        "first_acceptance": plan.scenario.survival.first_acceptance,
    }
