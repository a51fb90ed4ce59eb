"""The plan in plain words: what to do, what it gains, until where, and what would change the answer."""

from __future__ import annotations

from specmargin.decisions.plan import Plan, PlanRow


def verdict(plan: Plan) -> str:
    """Two or three sentences; the first says what to do."""
    return " ".join(part for part in (_advice(plan), _until(plan), _what_would_change(plan)) if part)


def _where(plan: Plan) -> str:
    scenario = plan.scenario
    gpus = scenario.layout.gpus
    count = f"{gpus} × " if gpus > 1 else ""
    return f"{scenario.architecture.name} on {count}{scenario.device.name} with {scenario.drafter.name}"


def _advice(plan: Plan) -> str:
    rows = [row for row in plan.rows if row.fits]
    if not rows:
        return (
            f"Nothing to decide: of the batches asked for none fits in memory ({plan.largest_batch} sequences do, "
            f"at a context of {plan.scenario.context:g})."
        )
    if not plan.pays:
        return f"Do not speculate: {_where(plan)} gains nothing at any batch looked at."
    first, best = rows[0], plan.best
    steps = _depth_steps(rows)
    gain = f"{first.speedup:.2f}× at batch {first.batch}"
    if best.batch != first.batch:
        gain += f", at most {best.speedup:.2f}× at batch {best.batch}"
    return f"Speculate: {_where(plan)} gains {gain}; draft {steps}."


def _depth_steps(rows: list[PlanRow]) -> str:
    """`3 up to batch 8, 2 up to 64, none from 128`."""
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


def _until(plan: Plan) -> str:
    if not plan.pays:
        return ""
    if plan.stops_at_batch is None:
        return f"It pays at every batch that fits ({plan.largest_batch})."
    free = plan.without_limit_stops_at_batch
    if plan.position_limit is not None and free != plan.stops_at_batch:
        beyond = "at every batch that fits" if free is None else f"up to batch {free - 1}"
        return (
            f"From batch {plan.stops_at_batch} on the engine has no graph for a draft ({plan.position_limit} positions "
            f"a step); with larger capture sizes it would pay {beyond}."
        )
    return f"It stops paying at batch {plan.stops_at_batch}."


def _what_would_change(plan: Plan) -> str:
    row = next((row for row in plan.rows if row.fits), plan.rows[0])
    yours = plan.scenario.survival.first_acceptance
    if row.break_even_acceptance is None:
        return f"At batch {row.batch} not even perfect drafts would pay."
    needed = row.break_even_acceptance
    side = "above" if row.depth == 0 else "below"
    change = (
        f"an acceptance {side} {needed:.2f} a token at batch {row.batch} (the plan assumes {yours:.2f} for the first)"
    )
    context = ""
    if plan.pays and plan.stops_at_context is not None:
        context = f", or a context beyond about {plan.stops_at_context:,} tokens"
    return f"What would change that: {change}{context}."
