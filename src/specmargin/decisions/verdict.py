"""The plan in three sentences: what to do and the gain, where it pays, and what would change the answer."""

from __future__ import annotations

from specmargin.decisions.paying import Loss, Ranges
from specmargin.decisions.plan import Plan
from specmargin.decisions.rows import PlanRow

_RANGES_SHOWN = 3
_STEPS_SHOWN = 3


def verdict(plan: Plan, *, unsupported: str = "") -> str:
    """At most three sentences; the first says what to do.

    `unsupported`: why no engine can run the plan's drafter; the plan is then what it would give.
    """
    parts = (_advice(plan, unsupported), _paying(plan, unsupported), _what_would_change(plan))
    return " ".join(part for part in parts if part)


def _subject(plan: Plan) -> str:
    scenario = plan.scenario
    gpus = scenario.layout.gpus
    count = f"{gpus} × " if gpus > 1 else ""
    return f"{scenario.architecture.name} on {count}{scenario.device.name} with {scenario.drafter.name}"


def _advice(plan: Plan, unsupported: str) -> str:
    rows = [row for row in plan.rows if row.fits]
    if not rows:
        return (
            f"No requested batch fits in memory ({_sequences(plan.largest_batch)} would, "
            f"at a context of {plan.scenario.context:g})."
        )
    if not plan.pays:
        return f"Do not speculate: {_subject(plan)} gains nothing at {_considered(rows)}."
    first, best = rows[0], plan.best
    gain = f"{first.speedup:.2f}× as fast at batch {first.batch}"
    if best.batch != first.batch:
        gain += f", up to {best.speedup:.2f}× at batch {best.batch}"
    capped = ""
    if any(row.depth == plan.setting.max_depth for row in rows) and plan.scenario.drafter.max_depth is None:
        capped = f" ({plan.setting.max_depth} is the maximum considered)"
    if unsupported:
        return f"Not yet: {unsupported}. {_subject(plan)} would be {gain} with drafts of {_depth_steps(plan, rows)}."
    return f"Speculate: {_subject(plan)} is {gain}; draft {_depth_steps(plan, rows)}{capped}."


def _considered(rows: list[PlanRow]) -> str:
    """The batches, and the one at which another depth would pay by itself."""
    alone = max((row for row in rows if row.better_depth), key=lambda row: row.better_speedup or 0.0, default=None)
    if alone is None:
        return "any batch considered"
    return (
        f"one depth for all batches considered (depth {alone.better_depth} would reach {alone.better_speedup:.2f}× "
        f"at batch {alone.batch} alone)"
    )


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count:,} sequences"


def _depth_steps(plan: Plan, rows: list[PlanRow]) -> str:
    """`3 tokens up to batch 8, 2 up to 64, nothing beyond`, up to the largest batch that fits."""
    if plan.setting.schedule is None:
        steps = [(row.batch, row.depth) for row in rows]
    else:
        ranges = [entry for entry in plan.setting.schedule.ranges if entry.first <= max(plan.largest_batch, 1)]
        steps = [(entry.last, entry.depth) for entry in ranges]
    steps = [step for i, step in enumerate(steps) if i + 1 == len(steps) or steps[i + 1][1] != step[1]]
    names = ["nothing" if depth == 0 else str(depth) for _, depth in steps]
    if steps[0][1] > 0:
        names[0] += " token" if steps[0][1] == 1 else " tokens"
    if len(steps) == 1:
        return f"{names[0]} at every batch"
    parts = [f"{name} up to batch {last:,}" for name, (last, _) in zip(names[:-1], steps[:-1], strict=True)]
    if len(parts) > _STEPS_SHOWN:
        parts = [*parts[: _STEPS_SHOWN - 1], "…"]
    last = f"{names[-1]} {'at the largest' if parts[-1] == '…' else 'beyond'}"
    return ", ".join([parts[0], *(part.replace("batch ", "") for part in parts[1:]), last])


def _paying(plan: Plan, unsupported: str) -> str:
    """Where the setting pays and loses: several ranges, if an MoE model pays again once a step reads all experts."""
    if not plan.pays:
        return ""
    verb = "would pay" if unsupported else "pays"
    parts = [f"It {verb} {_listed(plan.paying, plan.priced_up_to, plan.largest_batch)}{_beyond_graphs(plan)}"]
    if plan.loss is not None:
        parts.append(_losing(plan, plan.loss))
    return "; ".join([*parts, *_memory(plan)]) + "."


def _beyond_graphs(plan: Plan) -> str:
    if plan.setting.graph_limit is None or _last(plan.graph_free_paying) <= _last(plan.paying):
        return ""
    beyond = _listed(plan.graph_free_paying, plan.priced_up_to, plan.largest_batch)
    return f" (with CUDA graphs of more than {plan.setting.graph_limit:,} positions it could pay {beyond})"


def _last(ranges: Ranges) -> int:
    return ranges[-1][1] if ranges else 0


def _losing(plan: Plan, loss: Loss) -> str:
    """`it loses at batch 300 to 600, where drafting is off (0.95× at batch 512)`."""
    edges = [batch for entry in loss.ranges for batch in entry]
    off = not plan.setting.depths_at(plan.pricer, edges).any()
    where = f"batch {_range_names(loss.ranges)}"
    return (
        f"it loses at {where}{', where drafting is off' if off else ''} "
        f"({loss.worst_speedup:.2f}× at batch {loss.worst_batch:,})"
    )


def _listed(ranges: Ranges, priced_up_to: int, fits: int) -> str:
    if ranges == ((1, priced_up_to),):
        if fits > priced_up_to:
            return f"at every batch considered, up to {priced_up_to:,}"
        return f"at every batch that fits, up to {fits:,}"
    return f"at batch {_range_names(ranges)}" if ranges else "at no batch"


def _range_names(ranges: Ranges) -> str:
    parts = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in ranges]
    if len(parts) > _RANGES_SHOWN:
        parts = [*parts[: _RANGES_SHOWN - 1], "…", parts[-1]]
    return " and ".join(parts)


def _memory(plan: Plan) -> list[str]:
    """Memory reserved for drafts leaves less for sequences; much less on models with recurrent states."""
    if plan.largest_batch >= 0.8 * plan.no_spec_largest_batch:
        return []
    clause = f"with drafts, {_sequences(plan.largest_batch)} fit in memory instead of {plan.no_spec_largest_batch:,}"
    if plan.no_spec_peak_tokens_per_second > plan.peak_tokens_per_second:
        clause += (
            f", so peak throughput is higher without speculation "
            f"({plan.no_spec_peak_tokens_per_second:,.0f} against {plan.peak_tokens_per_second:,.0f} tok/s)"
        )
    return [clause]


def _what_would_change(plan: Plan) -> str:
    row = next((row for row in plan.rows if row.fits), plan.rows[0])
    if plan.setting.max_depth == 0:
        return "No drafts were considered (--depth 0)."
    if plan.switch_acceptance is None:
        return f"At batch {row.batch} not even perfect drafts would pay."
    side, effect = ("Above", "some depth pays") if row.depth == 0 else ("Below", "no depth pays")
    context = ""
    if plan.stops_at_context is not None:
        context = f"; beyond a context of about {plan.stops_at_context:,} tokens these flags do not pay there"
    return (
        f"{side} a per-token acceptance of {plan.switch_acceptance:.2f}, {effect} at batch {row.batch} "
        f"(the plan uses {plan.scenario.survival.first_acceptance:.2f} for the first token){context}."
    )
