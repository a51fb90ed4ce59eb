"""`plan --explain`: bottlenecks by batch, how to read the table, the effect of routing, and every source."""

from __future__ import annotations

from rich.console import Console

from specmargin.app.commands import check_json, serve_json
from specmargin.app.planning import Answer
from specmargin.cli import render
from specmargin.decisions.plan import Plan
from specmargin.decisions.rows import PlanRow
from specmargin.formats.base import EngineFormat
from specmargin.prices.model import Resource

_LEGEND = (
    "draft: draft tokens per sequence and step with these flags",
    "better: a depth that would be faster by more than --min-gain; none: no speculation",
    "tok/s: tokens per second over all sequences with these flags; plain: without speculation",
    "ms/token: time between tokens of one sequence",
    "break-even: per-token acceptance at which this depth breaks even",
    "accept length: break-even in tokens per round, including the bonus token, as engines report it",
    "hurdle: survival at which verifying one more draft token pays, drafting excluded; survival: probability that a "
    "draft token and all before it are accepted; never pays: not even a token that is certain to be accepted",
    "experts/GPU: distinct experts per layer that a step reads on the busiest GPU",
    "comm: share of the step spent in communication between GPUs",
    "bottleneck: component, and its limiting resource, that one more position waits for",
)


def show(out: Console, best: Answer, engine: EngineFormat) -> None:
    for note in best.config.notes:
        out.print(note, style="dim", markup=False)
    _show_commands(out, best, engine)
    _show_bottlenecks(out, best.plan)
    for line in _LEGEND:
        out.print(line, style="dim", markup=False)
    out.print()
    effect = best.routing_effect
    if effect is not None:
        out.print(str(effect), markup=False)
        out.print()
    render.sources(out, best.plan.pricer.sources)


def _show_commands(out: Console, best: Answer, engine: EngineFormat) -> None:
    """The whole command, and the benchmark that checks the first row that fits, or the load."""
    row = best.headline_row
    serve = serve_json(best, engine)
    check = check_json(best, engine, row, best.ranges[best.plan.rows.index(row)])
    out.print("start the server:", style="bold")
    print(serve["command"])  # not through Rich: each command must stay one line
    if serve["file_text"] and serve["file_name"] != best.config.file_name:
        print(f"{serve['file_name']}:\n{serve['file_text']}", end="")
    out.print("check the prediction on it:", style="bold")
    print(check["command"])
    expected = f"{check['metric']} {check['predicted']:.2f}"
    if best.config.text:
        expected += f"; without speculation {check['predicted_without_speculation']:.2f}"
    out.print(f"expected: {expected}", markup=False)
    if check["note"]:
        out.print(check["note"], style="dim", markup=False)
    out.print()


def _show_bottlenecks(out: Console, plan: Plan) -> None:
    scenario = plan.scenario
    several, moe = scenario.layout.gpus > 1, scenario.architecture.is_moe
    columns = ["batch", "plain ms", "accept length", "hurdle"]
    columns += [*(["experts/GPU"] if moe else []), *(["comm"] if several else [])]
    title = f"weights {scenario.weight_names}, KV {scenario.kv_precision.name}, {scenario.prices.name} prices"
    shown = render.table(title, [*((name, "right") for name in columns), ("bottleneck", "left")])
    for row in plan.rows:
        shown.add_row(
            f"{row.batch:,}",
            f"{row.no_spec_tpot_seconds * 1e3:.2f}",
            "never" if row.break_even_accept_length is None else f"{row.break_even_accept_length:.2f}",
            render.hurdle(row),
            *([f"{row.distinct_experts:.0f}"] if moe else []),
            *([f"{row.communication_share:.0%}"] if several else []),
            _bottleneck(row),
        )
    out.print(shown)
    out.print()


def _bottleneck(row: PlanRow) -> str:
    if row.bound_resource is Resource.COLLECTIVES:
        return str(row.bound_component)
    return f"{row.bound_component} ({row.bound_resource})"
