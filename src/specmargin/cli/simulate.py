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
        typer.Option("--save-requests", help="Every request, as Parquet (one policy).", rich_help_panel=o.OUTPUT),
    ] = None,
    save_steps: Annotated[
        Path | None,
        typer.Option("--save-steps", help="Every step, as Parquet (one policy).", rich_help_panel=o.OUTPUT),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Depth and load over time; of several policies, side by side (.png .svg .html).",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """Serve a workload with an engine like vLLM's, under one policy or several.

    Arrivals, prompts in pieces, KV blocks, preemption, drafts that are verified a step later: in seconds of your time.
    What is given beside a scenario file takes the place of what the file says.

    Examples:

      specmargin simulate qwen3.6-35b-a3b --gpu h200 --qps 6 --policy controller,fixed:2,none

      specmargin simulate day.toml --plot day.png

      specmargin simulate llama-3.1-70b --gpu h100-sxm --gpus 4 --drafter eagle --users 64 --requests 1000
    """
    from specmargin.app.serving import described_by
    from specmargin.files import check_new

    for path in (save_requests, save_steps):
        if path is not None:
            check_new(path, force=force)
    o.check_plot(plot, force=force)
    described, folder = described_by(request)
    names = described.policy.split(",")
    if len(names) > 1 and (save_requests or save_steps):
        raise ScenarioError("--save-requests and --save-steps are of one policy; name one")
    with needs_extra("simulate"):
        from specmargin.cli import simulate_view

    results = simulate_view.played(described, folder, names, log_steps=save_steps is not None)
    simulate_view.save_tables(results[0], save_requests, save_steps)
    if plot is not None:
        simulate_view.draw(plot, described, results)
    simulate_view.show(described, results, json=json)
