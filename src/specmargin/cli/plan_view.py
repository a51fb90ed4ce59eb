"""A plan in the terminal: verdict, table and engine flags."""

from __future__ import annotations

from rich.console import Console

from specmargin.app.payload import weight_names
from specmargin.app.planning import Answer
from specmargin.cli import comparison_view, render
from specmargin.decisions.load import Load, Operating
from specmargin.decisions.plan import Plan, PlanRow
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.verdict import verdict
from specmargin.formats.base import EngineConfig, EngineFormat
from specmargin.prices.model import Resource

_BATCHES_ACROSS = 6  # columns of the tables with one column per batch
_SHORTFALL = 0.05  # a configuration this far below the plan is pointed out


def show(
    answers: list[Answer], engine: EngineFormat, price: float | None, comparison: comparison_view.Compared | None
) -> None:
    out = render.console()
    best = answers[0]
    out.print(verdict(best.plan), style="bold", markup=False)
    out.print()
    if best.load is not None and best.no_spec is not None and best.speculating is not None:
        _show_load(out, best.load, best.no_spec, best.speculating)
    if len(answers) > 1:
        _show_ranking(out, answers)
    _show_rows(out, best.plan, price)
    if best.routing_effect is not None:
        out.print(str(best.routing_effect), markup=False)
        out.print()
    render.warnings(out, best.warnings)
    if comparison is not None:
        comparison_view.show(out, comparison)
    if best.by_context:
        _show_contexts(out, best)
    _show_config(out, best, engine)
    render.sources(out, best.plan.pricer.sources)


def _describe(scenario: Scenario) -> str:
    gpus = scenario.layout.gpus
    count = f"{gpus} × " if gpus > 1 else ""
    layout = f", {scenario.layout.parallel}" if gpus > 1 else ""
    return (
        f"{scenario.drafter.name} on {count}{scenario.device.title}{layout}, context {scenario.context:g}, weights "
        f"{weight_names(scenario)}, KV {scenario.kv_precision.name}, {scenario.prices.name} prices"
    )


def _show_rows(out: Console, plan: Plan, price: float | None) -> None:
    scenario = plan.scenario
    several, moe = scenario.layout.gpus > 1, scenario.architecture.is_moe
    roomy = not several and price is None  # room for one more column within 100 characters
    columns = ["batch", "draft", "speed-up", "tok/s", *(["plain"] if roomy else []), "ms/token", "hurdle", "break-even"]
    columns += [
        *(["experts"] if moe else []),
        *(["comm"] if several else []),
        *(["cost/Mtok"] if price is not None else []),
    ]
    shown = render.table(_describe(scenario), [(name, "right") for name in columns] + [("bound by", "left")])
    for row in plan.rows:
        cells = [
            str(row.batch),
            str(row.depth) if row.fits else f"({row.depth})",
            f"{row.speedup:.2f}×",
            render.tokens_per_second(row.goodput_tokens_per_second),
            *([render.tokens_per_second(row.no_spec_tokens_per_second)] if roomy else []),
            f"{row.tpot_seconds * 1e3:.2f}",
            f"{row.hurdle:.2f}",
            "never" if row.break_even_acceptance is None else f"{row.break_even_acceptance:.2f}",
            *([f"{row.distinct_experts:.0f}"] if moe else []),
            *([f"{row.communication_share:.0%}"] if several else []),
            *([f"{row.gpu_hours_per_million_tokens * price:.3f}"] if price is not None else []),
            _bottleneck(row),
        ]
        shown.add_row(*cells, style="" if row.fits else "dim")
    out.print(shown)
    if any(not row.fits for row in plan.rows):
        out.print(
            f"(parentheses: does not fit in memory; {plan.largest_batch:,} sequences fit at depth {plan.held_depth}, "
            f"{plan.no_spec_largest_batch:,} without speculation)",
            style="dim",
        )
    out.print(
        "hurdle: survival at which verifying one more draft token pays, drafting excluded; break-even: per-token "
        "acceptance at which this depth breaks even; bound by: bottleneck of one more position",
        style="dim",
    )
    out.print()


def _bottleneck(row: PlanRow) -> str:
    if row.bound_resource is Resource.COLLECTIVES:
        return str(row.bound_component)
    return f"{row.bound_component} ({row.bound_resource})"


def _spread(plan: Plan) -> list[int]:
    """Indices of the rows shown as columns: first, last, and evenly spaced ones between."""
    count = len(plan.rows)
    if count <= _BATCHES_ACROSS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_BATCHES_ACROSS - 1)) for i in range(_BATCHES_ACROSS)})


def _show_ranking(out: Console, answers: list[Answer]) -> None:
    same = all([row.batch for row in a.plan.rows] == [row.batch for row in answers[0].plan.rows] for a in answers)
    chosen = _spread(answers[0].plan) if same else [0]
    headings = [f"batch {answers[0].plan.rows[i].batch}" for i in chosen] if same else ["own batch"]
    shown = render.table(
        "drafters, best first: speed-up (draft)", [("drafter", "left"), *((h, "right") for h in headings)]
    )
    for entry in answers:
        cells = [f"{entry.plan.rows[i].speedup:.2f}× ({entry.plan.rows[i].depth})" for i in chosen]
        shown.add_row(entry.plan.scenario.drafter.name, *cells)
    out.print(shown)
    for entry in answers:
        out.print(
            f"  {entry.plan.scenario.drafter.name}: {entry.plan.scenario.survival.source}", style="dim", markup=False
        )
    out.print()


def _show_contexts(out: Console, best: Answer) -> None:
    chosen = _spread(best.plan)
    headings = [(f"batch {best.plan.rows[i].batch}", "right") for i in chosen]
    shown = render.table("by context: draft and speed-up", [("context", "right"), *headings])
    for tokens, plan in best.by_context.items():
        rows = [plan.rows[i] for i in chosen]
        shown.add_row(
            f"{tokens:,}", *(f"{row.depth} {row.speedup:.2f}×" if row.fits else "does not fit" for row in rows)
        )
    out.print(shown)
    out.print()


def _show_load(out: Console, load: Load, no_spec: Operating, speculating: Operating) -> None:
    tokens = f"{load.input_tokens} + {load.output_tokens} tokens"
    title = f"{load.requests_per_second:g} requests/s of {tokens} (times include prefill of other requests)"
    columns = [("", "left"), ("batch", "right"), ("draft", "right"), ("ms/token", "right"), ("prefill", "right")]
    target = load.tpot_target_seconds
    shown = render.table(title, [*columns, *([("target", "left")] if target is not None else [])])
    for name, point in (("no speculation", no_spec), ("speculating", speculating)):
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
    out.print(f"for {engine.title}:", style="bold")
    if config.text:
        print(config.text)  # not through Rich: it must stay one line
    if config.file_text:
        print(f"{config.file_name}:\n{config.file_text}")
    for note in (*config.notes, *_shortfalls(best, config)):
        out.print(f"({note})", style="dim", markup=False)
    out.print()


def _shortfalls(best: Answer, config: EngineConfig) -> list[str]:
    """Speed-ups of the configuration where the engine's format cannot express the plan."""
    pairs = zip(best.plan.rows, best.scheduled_speedups, strict=True)
    short = [
        f"{gain:.2f}× at batch {row.batch}" for row, gain in pairs if row.fits and gain < row.speedup * (1 - _SHORTFALL)
    ]
    return [f"with this configuration: {', '.join(short)}"] if short and config.text else []
