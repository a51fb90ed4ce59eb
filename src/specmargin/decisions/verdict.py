"""The plan in four lines: the answer, what to draft, the largest unknown, and the caveat that could change it.

The sentences are data (`verdict.toml`), which the static site fills too; this module finds their values. `details` are
the longer facts, for `--explain` and the JSON.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from specmargin.acceptance.survival import break_even_acceptance
from specmargin.decisions.advice import Advice, Judgement
from specmargin.decisions.payoff import Spans
from specmargin.decisions.plan import Plan
from specmargin.phrases import listed, say

PHRASES: dict[str, list[str]] = tomllib.loads((files("specmargin.decisions") / "verdict.toml").read_text("utf-8"))
LONG_SPANS, LONG_STEPS = 2, 4  # lists of more are summarised
_DETAILS = (
    *("pays_where", "clear_where", "loses_where", "graphs", "memory"),
    *("change_of_depth", "context_limit", "deepest"),
)
_GAINS = (
    *(Advice.SPECULATE, Advice.UP_TO_BATCH, Advice.UNCERTAIN, Advice.UNSUPPORTED),
    *(Advice.SLOWER_FIRST_TOKEN, Advice.MISSES_TARGET, Advice.OVERLOADED),
)


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
    """One line per sentence, the answer first.

    `advice`: of the service, if there is one, whose values then replace those of decode steps. `unsupported`: why no
    engine can run the plan's drafter; the plan is then what it would give. `latency`: of a target that is missed.
    `at_batch`: the batch asked about.
    """
    advice = advice or judgement.advice
    gains = advice in _GAINS and plan.pays
    values = _headline(plan, judgement) | _drafts(plan, judgement) | _doubt(judgement)
    values |= _losing(plan) | _clear(plan, judgement) | _context(plan)
    values |= {
        "none_fits": advice is Advice.NONE_FITS and at_batch is None,
        "too_large": advice is Advice.NONE_FITS,
        "known": values["known"] and advice is not Advice.NONE_FITS,
        "no_drafts": plan.setting.max_depth == 0,
        "unsupported": unsupported or None,
        "gains": gains,
        "uncertain": advice is Advice.UNCERTAIN,
        "refused": not judgement.drafts and not judgement.row.speedup > 1.0 and bool(judgement.range.inputs),
        "loses": judgement.drafts and not gains,
        "off": judgement.row.speedup if plan.pays and not judgement.drafts else None,
        "elsewhere": at_batch is not None and not gains and plan.pays,
        "paying_batches": _batches(plan.paying),
    }
    values |= dict(latency or {})
    served = service is not None and plan.pays
    if service is not None and served:
        values |= {"served": True, "drafter": None} | dict(service)
    elif service is not None:
        values |= {"drafter": None} | dict(service)  # nothing is drafted: what the best draft would give
    if served or unsupported or not gains:
        values |= {"limit": None, "less_capacity": False}
    values["crowded"] = values.get("wanted", 0.0) > plan.largest_batch
    values["prompt"] = not values.get("waits")  # else the prefill is named with the wait
    values["room"] = gains and not (values["less_capacity"] or served or unsupported)
    values["beyond"] = values["limit"] is not None and advice in (Advice.UP_TO_BATCH, Advice.UNCERTAIN)
    values["earlier"] = values["beyond"] and values["limit"] < plan.largest_batch
    return say("verdict", PHRASES, values) or ""


def details(plan: Plan, judgement: Judgement) -> list[str]:
    """Where it pays and loses, memory, and what would change the answer: a sentence each."""
    values = _headline(plan, judgement) | _losing(plan) | _clear(plan, judgement) | _context(plan)
    values |= _where(plan) | _graph_free(plan) | _change(plan)
    said = (say(name, PHRASES, values) for name in _DETAILS)
    return [sentence for sentence in said if sentence is not None]


def _headline(plan: Plan, judgement: Judgement) -> dict[str, Any]:
    row, sure = judgement.row, judgement.range
    known = bool(sure.inputs)
    return {
        "factor": row.speedup if known else None,
        "low": sure.low,
        "high": sure.high,
        "batch": row.batch,
        "depth": row.depth,
        "alone": not judgement.drafts and not plan.pays and row.speedup > 1.0 and known,  # by itself, at one batch
        "drafter": plan.scenario.drafter.name,
        "context": plan.scenario.context,
        "limit": plan.limit,
        "less_capacity": plan.loses_capacity and bool(plan.paying),
        "one_fits": plan.largest_batch == 1,
        "largest_batch": plan.largest_batch,
        "no_spec_largest_batch": plan.no_spec_largest_batch,
        "peak_loss": round(100.0 * (1.0 - plan.peak_tokens_per_second / plan.no_spec_peak_tokens_per_second)),
    }


def _drafts(plan: Plan, judgement: Judgement) -> dict[str, Any]:
    row = judgement.row
    accepted = float(plan.scenario.survival.up_to(max(row.depth, 1)).sum())
    even = row.break_even_acceptance
    # The constant acceptance with as many accepted tokens, which can be compared with the break-even.
    used = float(break_even_acceptance(1.0 + accepted, max(row.depth, 1)))
    return _steps(plan) | {
        "only_batch": row.batch if len(plan.rows) == 1 else None,
        "several": len(plan.rows) > 1,
        "even": even,
        "used": used,
        "just_short": even is not None and round(used, 2) == round(even, 2),  # would be printed as the same number
    }


def _steps(plan: Plan) -> dict[str, Any]:
    """Up to the largest batch that fits."""
    if plan.setting.schedule is None:
        steps = [(row.batch, row.depth) for row in plan.rows if row.fits]
    else:
        ranges = [entry for entry in plan.setting.schedule.ranges if entry.first <= max(plan.largest_batch, 1)]
        steps = [(entry.last, entry.depth) for entry in ranges]
    merged: list[dict[str, Any]] = []
    for last, depth in steps:
        if merged and merged[-1]["depth"] == depth:
            merged[-1]["last"] = last
        else:
            merged.append({"last": last, "depth": depth})
    merged = [step | {"alone": step["last"] == 1} for step in merged]
    return _rise(merged) | {
        "cut": len(merged) > LONG_STEPS,
        "first_step": say("step", PHRASES, {"first": True} | merged[0]) if merged else None,
        "every_step": listed("step", merged, PHRASES, between=""),
    }


def _rise(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """How depths come to the deepest, and from which batch they are below it for good."""
    depths = [step["depth"] for step in steps]
    deepest = max((index for index, depth in enumerate(depths) if depth == max(depths)), default=0)
    if deepest == 0:
        return {"rises": False, "rises_once": False}
    return {
        "rises": True,
        "rises_once": deepest == 1,
        "least": min(depths[: deepest + 1]),
        "most": depths[deepest],
        "deepest_from": steps[deepest - 1]["last"] + 1,
        "fewer_from": steps[deepest]["last"] + 1 if deepest + 1 < len(steps) else None,
    }


def _doubt(judgement: Judgement) -> dict[str, Any]:
    unknown = judgement.range.largest_unknown
    return {"known": unknown is not None, "unknown": unknown and unknown.phrase, "narrow": unknown and unknown.narrow}


def _losing(plan: Plan) -> dict[str, Any]:
    if plan.loss is None:
        return {}
    (edges, *more) = plan.loss.spans
    return {
        "losing_batches": _batches(plan.loss.spans),
        "off_there": not more and not plan.setting.depths_at(plan.pricer, edges).any(),
        "off_at_worst": not plan.setting.depths_at(plan.pricer, (plan.loss.worst_batch,)).any(),
        "matters": plan.loss.worst_speedup < 1.0 - plan.min_gain,
        "worst_speedup": plan.loss.worst_speedup,
        "worst_batch": plan.loss.worst_batch,
    }


def _clear(plan: Plan, judgement: Judgement) -> dict[str, Any]:
    """Where the 80% range is above 1."""
    clearly = judgement.surely_paying
    return {
        "partly_clear": bool(clearly) and clearly != plan.paying,
        "clear_batches": _batches(clearly),
        "nowhere_clear": plan.pays and not clearly,
    }


def _batches(spans: Spans) -> str | None:
    if not spans:
        return None
    items = [{"low": low, "high": high, "one": low == high} for low, high in spans]
    ends = {"scattered": len(spans) > LONG_SPANS, "low": spans[0][0], "high": spans[-1][1]}
    return say("batches", PHRASES, ends | {"spans": listed("span", items, PHRASES, between=" and ")})


def _context(plan: Plan) -> dict[str, Any]:
    return {"stops_at_context": plan.stops_at_context, "first_batch": plan.rows[0].batch}


# --- of the details alone ---


def _where(plan: Plan) -> dict[str, Any]:
    capped = any(row.depth == plan.setting.max_depth for row in plan.rows if row.fits)
    return {
        "everywhere": plan.paying == ((1, plan.priced_up_to),),
        "more_fit": plan.largest_batch > plan.priced_up_to,
        "priced_up_to": plan.priced_up_to,
        "paying_batches": _batches(plan.paying),
        "fewer_fit": plan.largest_batch < plan.no_spec_largest_batch,
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
        "drafts_considered": plan.setting.max_depth > 0,
        "row_off": row.depth == 0,
        "row_batch": row.batch,
        "switch_acceptance": plan.switch_acceptance,
        "first_acceptance": plan.scenario.survival.first_acceptance,
    }
