"""`specmargin simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmargin.app.verbs_schema import SimulateRequest
from specmargin.cli import options as o
from specmargin.cli.requests import command
from specmargin.errors import ScenarioError, needs_extra

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, SimulateRequest)
def simulate(
    request: SimulateRequest,
    save_requests: Annotated[
        Path | None,
        typer.Option(
            "--save-requests",
            help="Write all requests to FILE.parquet or FILE.csv (one policy only).",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    save_steps: Annotated[
        Path | None,
        typer.Option(
            "--save-steps",
            help="Write all steps to FILE.parquet or FILE.csv (one policy only).",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw depth and load over time, or several policies side by side: FILE.png, .svg, .html or .json.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    output: o.TableOption = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """Simulate an engine like vLLM that serves a workload under one policy or several.

    Models arrivals, chunked prefill, KV blocks, preemption, and drafts that are verified one step later.

    Options given together with a scenario file override the file.

    Examples:

      specmargin simulate qwen3.6-35b-a3b --gpu h200 --qps 6 --policy controller,fixed:2,none

      specmargin simulate day.toml --plot day.png

      specmargin simulate llama-3.1-70b --gpu h100-sxm --gpus 4 --drafter eagle --users 64 --requests 1000
    """
    with needs_extra("simulate"):
        from specmargin.app.simulating import policy_names, simulated, simulated_json
        from specmargin.cli import render, simulate_view

    for path in (output, save_requests, save_steps):
        o.check_table(path, force=force)
    o.check_plot(plot, force=force)
    if len(policy_names(request)) > 1 and (save_requests or save_steps):
        raise ScenarioError("--save-requests and --save-steps need a single policy: name one with --policy")
    answer = simulated(request, log_steps=save_steps is not None, progress=render.progress)
    o.write_rows(output, answer.flat_rows, force=force)
    simulate_view.save_tables(answer.results[0], save_requests, save_steps, force=force)
    if plot is not None:
        from specmargin.api.charts import simulation_chart

        o.save_plot(plot, simulation_chart(answer))
    if json:
        render.json_out(simulated_json(answer))
    else:
        simulate_view.show(answer)
