"""`specmargin plan`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specmargin.app.verbs_schema import PlanRequest
from specmargin.cli import options as o
from specmargin.cli.requests import command
from specmargin.errors import needs_extra

if TYPE_CHECKING:
    from specmargin.app.planning import Answer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, PlanRequest)
def plan(
    request: PlanRequest,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the engine configuration to this file.", rich_help_panel=o.OUTPUT),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw depth and speed-up by batch, with --contexts also by context: FILE.png, .svg, .html, .json.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            help="Write the policy file of the live controller in vLLM (docs/live.md).",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """Whether speculation pays, the draft depth per batch size, and the engine configuration.

    Prints a verdict, one row per batch size, and the flags for the engine.

    Examples:

      specmargin plan qwen3.6-35b-a3b --gpu h200

      specmargin plan deepseek-v3 --gpu h200 --gpus 8 --parallel ep --acceptance 0.82

      specmargin plan ./my-model --gpu b200 --qps 4 --isl 1000 --osl 300 --tpot-slo 20
    """
    from specmargin.app.payload import payload
    from specmargin.app.planning import answers, compare_prices
    from specmargin.cli import comparison_view, plan_view, render
    from specmargin.files import write_text
    from specmargin.formats import find_engine

    o.check_outputs(output, policy, force=force)
    o.check_plot(plot, force=force)
    ranked = answers(request)
    comparison = None if request.compare is None else compare_prices(ranked[0], request, request.compare)
    if output is not None:
        config = ranked[0].config
        write_text(output, config.file_text or f"{config.text}\n", force=force)
        if config.file_name:  # the flags that are shown name the file that was written
            text = config.text.replace(config.file_name, shlex.quote(str(output)))
            ranked[0] = replace(ranked[0], config=replace(config, text=text, file_name=str(output)))
    if plot is not None:
        _draw(ranked[0], plot)
    message = None if policy is None else _write_policy(policy, ranked[0], request, force=force)
    engine = find_engine(request.engine)
    if json:
        compared = {} if comparison is None else {"comparison": comparison_view.payload(comparison)}
        render.json_out(payload(ranked, engine, request.gpu_hour_price) | compared)
    else:
        plan_view.show(ranked, engine, request.gpu_hour_price, comparison)
        if message is not None:
            typer.echo(f"Wrote {message}.")


def _write_policy(path: Path, best: Answer, request: PlanRequest, *, force: bool) -> str:
    with needs_extra("live"):
        from specmargin.app.policy_file import write_policy

    return write_policy(path, best, request.acceptance, max_batch=request.max_batch, force=force)


def _draw(best: Answer, path: Path) -> None:
    from specmargin.figures.files import save
    from specmargin.figures.payoff import context_figure, speedup_figure

    plan = best.plan
    if best.by_context:
        figure = context_figure(plan.pricer, max_depth=plan.max_depth, graph_limit=plan.graph_limit)
    else:
        batch = plan.best.batch
        figure = speedup_figure(plan.pricer, batch=batch, max_depth=plan.max_depth, graph_limit=plan.graph_limit)
    save(figure.chart(), path)
