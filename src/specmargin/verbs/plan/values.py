"""A plan as JSON with stable keys, for `plan --json` and the web page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from specmargin.decisions.plan import Plan
from specmargin.decisions.rows import PlanRow, rounded_seconds
from specmargin.decisions.verdict import details, verdict
from specmargin.sources import weakest
from specmargin.verbs.plan.commands import check_json, serve_json
from specmargin.verbs.plan.decode_only import arrival_of, arrival_values
from specmargin.verbs.plan.drafter_plan import DrafterPlan, Settled
from specmargin.verbs.plan.main_memory import main_memory_values
from specmargin.verbs.plan.memory import memory_values


def plan_values(answers: Sequence[DrafterPlan]) -> dict[str, Any]:
    best, price = answers[0], answers[0].gpu_hour_price
    effect, judgement = best.routing_effect, best.judgement
    plan, scenario, sources = best.plan, best.plan.scenario, best.plan.pricer.sources
    values: dict[str, Any] = {
        "model": scenario.architecture.name,
        "gpu": scenario.device.name,
        "gpus": scenario.layout.gpus,
        "parallel": scenario.layout.name,
        "engine": best.engine.name,
        "drafter": scenario.drafter.name,
        "context": scenario.context,
        "prices": scenario.prices.name,
        "weights": scenario.weight_names,
        "kv_cache": scenario.kv_precision.name,
        "verdict": answer_text(best),
        "verdict_details": further_facts(best),
        "advice": str(best.advice),
        "headline": _headline_values(best),
        "sources": {name: str(source) for name, source in sources.items()},
        "weakest_source": str(weakest(sources.values())),
        "warnings": list(best.warnings),
        "routing": scenario.routing.name if scenario.architecture.is_moe else None,
        "routing_effect": None if effect is None else [asdict(row) for row in effect.rows],
        "early_stop": _early_stop_values(plan),
        "gpu_hour": None if best.gpu_hour is None else asdict(best.gpu_hour),
        "rows": [
            row_values(row, price) | {"speedup_low": sure.low, "speedup_high": sure.high}
            for row, sure in zip(plan.rows, best.ranges, strict=True)
        ],
        "inputs": [] if best.headline_range is None else [asdict(entry) for entry in best.headline_range.inputs],
        "pays_at_batches": [list(entry) for entry in plan.paying],
        "surely_pays_at_batches": [list(entry) for entry in judgement.surely_paying],
        "uncertain_at_batches": [list(entry) for entry in judgement.uncertain],
        "loses_at_batches": [] if plan.loss is None else [list(entry) for entry in plan.loss.spans],
        "pays_at_batches_without_graph_limit": [list(entry) for entry in plan.graph_free_paying],
        "stops_at_batch": plan.stops_at_batch,
        "stops_at_context": plan.stops_at_context,
        "switch_acceptance": plan.switch_acceptance,
        "largest_batch": plan.largest_batch,
        "no_spec_largest_batch": plan.no_spec_largest_batch,
        "memory": memory_values(plan),
        "main_memory": main_memory_values(plan),
        "peak_tokens_per_second": plan.peak_tokens_per_second,
        "no_spec_peak_tokens_per_second": plan.no_spec_peak_tokens_per_second,
        "config": best.config.text,
        "config_supported": not best.config.unsupported,
        "config_needs": best.config.needs,
        "config_file": best.config.file_text,
        "config_notes": list(best.config.all_notes),
        "schedule": [[r.first, r.last, r.depth] for r in best.config.schedule.ranges],
        "serve": serve_json(best),
        "check": check_json(best, *best.headline),
    }
    if best.request.decode_only:
        values["decode_only"] = arrival_values(arrival_of(best.plan, best.request.isl))
    if best.by_context:
        values["by_context"] = [
            {"context": tokens, "rows": [row_values(row, price) for row in rows]}
            for tokens, rows in best.by_context.items()
        ]
    if best.settled is not None:
        values["load"] = _settled_values(best.settled)
    if best.service is not None and best.service_range is not None:
        values["service"] = best.service.values(*best.service_range, best.gpu_hour_price)
    if len(answers) > 1:
        values["ranking"] = [_ranked_values(entry) for entry in answers]
    return values


def _ranked_values(entry: DrafterPlan) -> dict[str, Any]:
    return {
        "drafter": entry.plan.scenario.drafter.name,
        "mean_speedup": entry.mean_speedup,
        "acceptance_source": str(entry.plan.scenario.survival.source),
        "rows": [row_values(row, entry.gpu_hour_price) for row in entry.plan.rows],
    }


def answer_text(best: DrafterPlan) -> str:
    """The verdict: of the service, with a load; else of decode steps."""
    return verdict(
        best.plan,
        best.judgement,
        advice=best.advice,
        unsupported=best.config.unsupported,
        service=_service(best),
        latency=_latency(best),
        at_batch=best.request.at_batch,
    )


def further_facts(best: DrafterPlan) -> list[str]:
    """What the verdict leaves out, a sentence each."""
    said = answer_text(best).splitlines()
    return [fact for fact in details(best.plan, best.judgement) if fact not in said]


def _service(best: DrafterPlan) -> dict[str, Any] | None:
    """What a verdict says of a load; where nothing is drafted, of the best draft."""
    sure = best.service_range
    if best.service is None or sure is None:
        return None
    if best.plan.pays:
        return best.service.said(*sure)
    if best.refused is None:
        return None
    row, unsure = best.refused
    return best.service.said_of_refused(row.speedup, unsure.low, unsure.high)


def _latency(best: DrafterPlan) -> dict[str, Any]:
    """What a verdict says of a target that is missed."""
    target = best.target
    if target is None or target.is_met:
        return {}
    return {
        "missed": True,
        "target": target.seconds * 1e3,
        "token_ms": target.tpot_seconds * 1e3,
        "plain_token_ms": target.no_spec_tpot_seconds * 1e3,
        "plain_meets": target.is_met_without,
    }


def _headline_values(best: DrafterPlan) -> dict[str, Any]:
    """The row by which the plan is judged: the first that gains, else the best draft, which it does not use."""
    row, sure = best.judgement.row, best.judgement.range
    values = {"batch": row.batch, "depth": row.depth, "speedup": row.speedup}
    return values | {"speedup_low": sure.low, "speedup_high": sure.high}


def _early_stop_values(plan: Plan) -> dict[str, Any] | None:
    stop = plan.scenario.early_stop
    if stop is None:
        return None
    return {"p_min": stop.p_min, "mean_drafted_by_depth": list(stop.mean_drafted_by_depth(plan.setting.max_depth))}


def row_values(row: PlanRow, price: float | None) -> dict[str, Any]:
    values = asdict(row)
    values["bound_by"] = f"{values.pop('bound_component')}: {values.pop('bound_resource')}"
    values["hurdle_by_component"] = {str(name): _rounded(value, row) for name, value in row.hurdle_by_component.items()}
    if price is not None:
        cost = row.gpu_hours_per_million_tokens * price
        values |= {
            "cost_per_million_tokens": cost,
            "no_spec_cost_per_million_tokens": cost * row.speedup,
            "currency": "USD",
        }
    return values


def _rounded(hurdle: float, row: PlanRow) -> float:
    """Zero where the time behind it is below a nanosecond."""
    return row.goodput_tokens_per_second * rounded_seconds(hurdle / row.goodput_tokens_per_second)


def _settled_values(settled: Settled) -> dict[str, Any]:
    load = settled.load
    asked = {"qps": load.requests_per_second, "isl": load.prompt_tokens, "osl": load.output_tokens}
    return asked | {"no_spec": asdict(settled.no_spec), "speculating": asdict(settled.speculating)}
