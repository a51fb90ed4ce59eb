"""The plan as a short paragraph: what to do, the gain, where it ends, and what would change the answer."""

from __future__ import annotations

from specmargin.decisions.plan import Plan, PlanRow

_RANGES_SHOWN = 3


def verdict(plan: Plan) -> str:
    """A few sentences; the first says what to do."""
    parts = (_advice(plan), _paying(plan), _memory(plan), _what_would_change(plan))
    return " ".join(part for part in parts if part)


def _setting(plan: Plan) -> str:
    scenario = plan.scenario
    gpus = scenario.layout.gpus
    count = f"{gpus} × " if gpus > 1 else ""
    return f"{scenario.architecture.name} on {count}{scenario.device.name} with {scenario.drafter.name}"


def _advice(plan: Plan) -> str:
    rows = [row for row in plan.rows if row.fits]
    if not rows:
        return (
            f"No requested batch fits in memory ({_sequences(plan.largest_batch)} would, "
            f"at a context of {plan.scenario.context:g})."
        )
    if not plan.pays:
        return f"Do not speculate: {_setting(plan)} gains nothing at any batch considered."
    first, best = rows[0], plan.best
    gain = f"{first.speedup:.2f}× at batch {first.batch}"
    if best.batch != first.batch:
        gain += f", at most {best.speedup:.2f}× at batch {best.batch}"
    capped = ""
    if any(row.depth == plan.max_depth for row in rows) and plan.scenario.drafter.max_depth is None:
        capped = f" ({plan.max_depth} is the deepest considered)"
    return f"Speculate: {_setting(plan)} gains {gain}; draft {_depth_steps(rows)}{capped}."


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count:,} sequences"


def _depth_steps(rows: list[PlanRow]) -> str:
    """`3 up to batch 8, 2 up to 64, nothing up to 128`."""
    parts: list[str] = []
    for index, row in enumerate(rows):
        following = rows[index + 1] if index + 1 < len(rows) else None
        if following is not None and following.depth == row.depth:
            continue
        depth = "nothing" if row.depth == 0 else str(row.depth)
        parts.append(f"{depth} up to batch {row.batch}")
    if len(parts) > 4:
        parts = [*parts[:2], "…", parts[-1]]
    return ", ".join(parts)


def _paying(plan: Plan) -> str:
    """Where speculation pays. Several ranges are possible: an MoE model touches all its experts at a moderate batch."""
    if not plan.pays:
        return ""
    sentence = f"It pays {_listed(plan.paying, plan.priced_up_to, plan.largest_batch)}."
    if plan.graph_limit is not None and plan.graph_free_paying != plan.paying:
        beyond = _listed(plan.graph_free_paying, plan.priced_up_to, plan.largest_batch)
        sentence += (
            f" The engine's largest CUDA graph holds {plan.graph_limit} positions per step; "
            f"with larger capture sizes it would pay {beyond}."
        )
    return sentence


def _listed(ranges: tuple[tuple[int, int], ...], priced_up_to: int, fits: int) -> str:
    if ranges == ((1, priced_up_to),):
        if fits > priced_up_to:
            return f"at every batch considered (up to {priced_up_to:,})"
        return f"at every batch that fits ({fits:,})"
    parts = [f"batch {first:,}" if first == last else f"{first:,} to {last:,}" for first, last in ranges]
    if len(parts) > _RANGES_SHOWN:
        parts = [*parts[: _RANGES_SHOWN - 1], "…", parts[-1]]
    return f"at batch {' and '.join(parts)}".replace("at batch batch", "at batch").replace(" and batch", " and")


def _memory(plan: Plan) -> str:
    """Memory reserved for drafts leaves less for sequences; much less on models with recurrent states."""
    if not plan.pays or plan.largest_batch >= 0.8 * plan.no_spec_largest_batch:
        return ""
    sentence = (
        f"Speculation takes memory: {_sequences(plan.largest_batch)} fit instead of {plan.no_spec_largest_batch:,}"
    )
    if plan.no_spec_peak_tokens_per_second > plan.peak_tokens_per_second:
        sentence += (
            f", so with a full queue plain decoding serves more "
            f"({plan.no_spec_peak_tokens_per_second:,.0f} tokens per second against {plan.peak_tokens_per_second:,.0f})"
        )
    return sentence + "."


def _what_would_change(plan: Plan) -> str:
    row = next((row for row in plan.rows if row.fits), plan.rows[0])
    if plan.max_depth == 0:
        return "No drafts were considered (--depth 0)."
    if plan.switch_acceptance is None:
        return f"At batch {row.batch} not even perfect drafts would pay."
    side = "above" if row.depth == 0 else "below"
    change = (
        f"a per-token acceptance {side} {plan.switch_acceptance:.2f} at batch {row.batch} "
        f"(the plan assumes {plan.scenario.survival.first_acceptance:.2f} for the first token)"
    )
    context = "" if plan.stops_at_context is None else f", or a context beyond about {plan.stops_at_context:,} tokens"
    return f"What would change that: {change}{context}."
