"""`specmargin plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specmargin.app.verbs_schema import PlanRequest
from specmargin.cli import options as o
from specmargin.cli.requests import command
from specmargin.errors import needs_extra

if TYPE_CHECKING:
    from specmargin.app.plan_answer import PlanAnswer
    from specmargin.formats.base import EngineConfig

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_WAIT_LOAD = "simulating the load; the first time, the simulator is compiled (about half a minute)"


OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Write the engine configuration to this file, or the table to FILE.csv.",
        rich_help_panel=o.OUTPUT,
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Draw depth and speed-up by batch, with --contexts also by context: FILE.png, .svg, .html, .json.",
        rich_help_panel=o.OUTPUT,
    ),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        help="Write the policy file of the live controller in vLLM or SGLang (docs/guide/vllm.md).",
        rich_help_panel=o.OUTPUT,
    ),
]
TableOption = Annotated[
    Path | None,
    typer.Option(
        "--sps-table",
        help="Write the price table of SGLang's DSpark (--engine sglang --drafter dspark).",
        rich_help_panel=o.OUTPUT,
    ),
]
ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Also print bottlenecks, experts, break-even lengths, notes and all sources.",
        rich_help_panel=o.OUTPUT,
    ),
]


@command(app, PlanRequest)
def plan(
    request: PlanRequest,
    output: OutputOption = None,
    plot: PlotOption = None,
    policy: PolicyOption = None,
    sps_table: TableOption = None,
    explain: ExplainOption = False,
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
    from specmargin.app.plan_answer import plan_answer, plan_json
    from specmargin.cli import plan_view, render
    from specmargin.formats import find_engine

    _check(request, plot, sps_table, output, policy, force=force)
    with render.waiting(_WAIT_LOAD if request.isl is not None else "planning"):
        answer = plan_answer(request)
    if output is not None:
        answer = _write(answer, output, force=force)
    if plot is not None:
        from specmargin.api.charts import plan_chart

        o.save_plot(plot, plan_chart(answer))
    messages = []
    if policy is not None:
        answer, message = _write_policy(policy, answer, request, force=force)
        messages.append(message)
    if sps_table is not None:
        answer, message = _write_price_table(answer, sps_table, force=force)
        messages.append(message)
    if json:
        return render.json_out(plan_json(answer))
    engine, price = find_engine(request.engine), request.gpu_hour_price
    plan_view.show(list(answer.ranked), engine, price, answer.compared, explain=explain)
    for message in messages:
        typer.echo(f"Wrote {message}.")
    return None


def _check(request: PlanRequest, plot: Path | None, sps_table: Path | None, *others: Path | None, force: bool) -> None:
    """Every file that is to be written, before anything is computed."""
    if sps_table is not None:
        from specmargin.app.price_table import check_price_table

        check_price_table(request)
    o.check_outputs(*others, sps_table, force=force)
    o.check_plot(plot, force=force)


def _write(answer: PlanAnswer, output: Path, *, force: bool) -> PlanAnswer:
    """Rows as CSV, or the engine's configuration; flags that are shown then name the file that was written."""
    from specmargin.app.plan_answer import plan_json
    from specmargin.files import is_table, write_table, write_text

    if is_table(output):
        write_table(output, plan_json(answer)["rows"], force=force)
        return answer
    config = answer.best.config
    write_text(output, config.file_text or f"{config.text}\n", force=force)
    return _with_config(answer, config.with_file(str(output)))


def _with_config(answer: PlanAnswer, config: EngineConfig) -> PlanAnswer:
    return replace(answer, ranked=(replace(answer.best, config=config), *answer.ranked[1:]))


def _write_price_table(answer: PlanAnswer, path: Path, *, force: bool) -> tuple[PlanAnswer, str]:
    from specmargin.app.price_table import write_price_table

    written = write_price_table(path, answer.best, max_batch=answer.request.max_batch, force=force)
    return replace(answer, ranked=(written.answer, *answer.ranked[1:])), written.message


def _write_policy(path: Path, answer: PlanAnswer, request: PlanRequest, *, force: bool) -> tuple[PlanAnswer, str]:
    from specmargin.app.planning import MAX_NUM_SEQS
    from specmargin.formats import find_engine

    with needs_extra("live"):
        from specmargin.app.policy_file import write_policy

    config, message = write_policy(
        path,
        answer.best,
        request.acceptance,
        engine=find_engine(request.engine),
        max_batch=request.max_batch or MAX_NUM_SEQS,
        force=force,
    )
    return _with_config(answer, config), message
