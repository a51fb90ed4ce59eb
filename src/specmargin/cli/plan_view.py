"""A plan in the terminal, in 80 columns: verdict, table, flags, and where the numbers come from."""

from __future__ import annotations

from rich.console import Console

from specmargin.app.payload import answer_text
from specmargin.app.planning import Answer
from specmargin.cli import comparison_view, plan_details_view, render, service_view
from specmargin.decisions.certainty import inputs_text
from specmargin.decisions.load import Load, Operating
from specmargin.decisions.plan import Plan
from specmargin.decisions.rows import PlanRow
from specmargin.formats.base import EngineFormat

_MANY_ROWS = 9
_BATCHES_ACROSS = 6  # columns of the tables with one column per batch


def show(
    answers: list[Answer],
    engine: EngineFormat,
    price: float | None,
    comparison: comparison_view.Compared | None,
    *,
    explain: bool,
) -> None:
    out = render.console()
    best = answers[0]
    out.print(answer_text(best), style="bold", markup=False)
    crowded = not explain and _is_crowded(best)
    if not crowded:
        out.print()
    if best.service is not None:
        target = None if best.load is None else best.load.tpot_target_seconds
        assumed = "range_ratio" not in best.request.model_fields_set
        service_view.show(out, best.service, target, range_assumed=assumed)
    if best.service is None and best.load is not None and best.no_spec is not None and best.speculating is not None:
        _show_load(out, best.load, best.no_spec, best.speculating)
    if len(answers) > 1:
        _show_ranking(out, answers)
    _show_rows(out, best.plan, price, crowded=crowded)
    if explain:
        render.warnings(out, best.warnings)
    elif best.warnings:
        _show_first_warning(out, best.warnings)
    if not crowded and (explain or not best.warnings or len(best.plan.rows) < _MANY_ROWS):
        out.print()
    if comparison is not None:
        comparison_view.show(out, comparison)
    if best.by_context:
        _show_contexts(out, best)
    _show_config(out, best, engine)
    if explain:
        out.print()
        plan_details_view.show(out, best, engine)
    else:
        for line in _provenance(best):
            out.print(line, style="dim", markup=False)


def _is_crowded(best: Answer) -> bool:
    """Whether flags of several lines and many rows would make more than 30 lines."""
    return len(best.plan.rows) >= _MANY_ROWS and "\n" in best.config.text


def _title(plan: Plan) -> str:
    scenario = plan.scenario
    where, gpus, note = scenario.device.title, scenario.layout.gpus, ""
    if gpus > 1:
        where, note = f"{gpus} × {scenario.device.name} ({scenario.layout.parallel})", "; batch and tok/s over all GPUs"
    return f"{scenario.drafter.name} on {where}, context {scenario.context:,.0f}{note}"


def _show_rows(out: Console, plan: Plan, price: float | None, *, crowded: bool) -> None:
    """`crowded`: of the batches that do not fit in memory, the first only."""
    better = any(row.better_depth is not None for row in plan.rows)
    columns = ["batch", "draft", "speed-up", *(["better"] if better else []), "tok/s", "plain", "ms/token"]
    columns += ["break-even", "hurdle" if price is None else "$/Mtok"]
    first_too_large = min((row.batch for row in plan.rows if not row.fits), default=0)
    out.print(_title(plan), style="bold", markup=False)  # not as the table's title, which wraps at the table's width
    shown = render.table("", [(name, "right") for name in columns])
    for row in plan.rows:
        if crowded and not row.fits and row.batch > first_too_large:
            continue
        cells = [
            f"{row.batch:,}",
            str(row.depth) if row.fits else f"({row.depth})",
            f"{row.speedup:.2f}×",
            *([_better(row)] if better else []),
            render.tokens_per_second(row.goodput_tokens_per_second),
            render.tokens_per_second(row.no_spec_tokens_per_second),
            f"{row.tpot_seconds * 1e3:.2f}",
            "never" if row.break_even_acceptance is None else f"{row.break_even_acceptance:.2f}",
            render.hurdle(row) if price is None else f"{row.gpu_hours_per_million_tokens * price:.3f}",
        ]
        shown.add_row(*cells, style="" if row.fits else "dim")
    out.print(shown)
    if any(not row.fits for row in plan.rows):
        out.print(_memory(plan), style="dim")


def _show_first_warning(out: Console, warnings: tuple[str, ...]) -> None:
    """One line; `--explain` has all of it."""
    rest = " … (--explain)" if len(warnings) == 1 else f" … (and {len(warnings) - 1} more: --explain)"
    text = f"warning: {warnings[0]}"
    room = render.WIDTH - len(rest)
    shown = text if len(warnings) == 1 and len(text) <= render.WIDTH else text[:room].rpartition(" ")[0] + rest
    out.print(shown, style="yellow", markup=False)


def _better(row: PlanRow) -> str:
    """Another depth that is faster by more than `--min-gain`."""
    if row.better_depth is None:
        return ""
    return f"{row.better_depth or 'none'}: {row.better_speedup:.2f}×"


def _memory(plan: Plan) -> str:
    if not plan.setting.configured:
        return f"(parentheses: does not fit in memory; {plan.largest_batch:,} sequences fit)"
    return (
        f"(parentheses: does not fit in memory; {plan.largest_batch:,} sequences fit at depth {plan.held_depth}, "
        f"{plan.no_spec_largest_batch:,} plain)"
    )


def _spread(plan: Plan) -> list[int]:
    """Indices of the rows shown as columns: first, last, and evenly spaced ones between."""
    count = len(plan.rows)
    if count <= _BATCHES_ACROSS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_BATCHES_ACROSS - 1)) for i in range(_BATCHES_ACROSS)})


def _show_ranking(out: Console, answers: list[Answer]) -> None:
    same = all([row.batch for row in a.plan.rows] == [row.batch for row in answers[0].plan.rows] for a in answers)
    chosen = _spread(answers[0].plan) if same else [0]
    headings = [f"batch {answers[0].plan.rows[i].batch:,}" for i in chosen] if same else ["own batch"]
    shown = render.table(
        "drafters, best first: draft and speed-up", [("drafter", "left"), *((h, "right") for h in headings)]
    )
    for entry in answers:
        shown.add_row(entry.plan.scenario.drafter.name, *(_gain(entry.plan.rows[i]) for i in chosen))
    out.print(shown)
    for entry in answers:
        out.print(
            f"  {entry.plan.scenario.drafter.name}: {entry.plan.scenario.survival.source}", style="dim", markup=False
        )
    out.print()


def _gain(row: PlanRow) -> str:
    return f"{row.depth} {row.speedup:.2f}×" if row.fits else f"({row.depth} {row.speedup:.2f}×)"


def _show_contexts(out: Console, best: Answer) -> None:
    chosen = _spread(best.plan)
    headings = [(f"batch {best.plan.rows[i].batch:,}", "right") for i in chosen]
    title = "by context, with the same flags: draft and speed-up (parentheses: does not fit)"
    out.print(title, style="bold")
    shown = render.table("", [("context", "right"), *headings])
    for tokens, rows in best.by_context.items():
        shown.add_row(f"{tokens:,}", *(_gain(rows[i]) for i in chosen))
    out.print(shown)
    out.print()


def _show_load(out: Console, load: Load, no_spec: Operating, speculating: Operating) -> None:
    tokens = f"{load.input_tokens} + {load.output_tokens} tokens"
    title = f"{load.requests_per_second:g} requests/s of {tokens} (times include prefill of other requests)"
    out.print(title, style="bold")
    columns = [("", "left"), ("batch", "right"), ("draft", "right"), ("ms/token", "right"), ("prefill", "right")]
    target = load.tpot_target_seconds
    shown = render.table("", [*columns, *([("target", "left")] if target is not None else [])])
    for name, point in (("no speculation", no_spec), ("with these flags", speculating)):
        cells = [
            name,
            str(point.batch),
            str(point.depth),
            f"{point.tpot_seconds * 1e3:.2f}",
            f"{point.prefill_share:.0%}",
        ]
        if target is not None:
            cells.append("met" if point.meets_target else f"missed ({target * 1e3:g} ms)")
        shown.add_row(*cells)
    out.print(shown)
    out.print()


def _show_config(out: Console, best: Answer, engine: EngineFormat) -> None:
    config = best.config
    if not config.text:
        out.print(f"{engine.title}: {'; '.join(config.notes)}", markup=False)
    else:
        out.print(f"{engine.title} flags (for {config.needs}):", style="bold", markup=False)
        print(config.text)  # not through Rich: it must stay one line
        if config.limits:
            out.print(f"({'; '.join(config.limits)})", style="dim", markup=False)
    if config.file_text:
        print(f"{config.file_name}: {config.file_text}")


def _provenance(best: Answer) -> list[str]:
    """One line on what kind of evidence the main inputs are, and one on what was understood of `--acceptance`."""
    scenario = best.plan.scenario
    survival = scenario.survival.source
    kinds = f"prices: {scenario.prices.name}"
    if best.headline_range is not None:
        kinds = inputs_text(best.headline_range)
    echo = f"acceptance: {survival.detail}".replace(", given by the user", "")
    return [*([echo] if best.own_acceptance else []), f"{kinds} (--explain)"]
