"""`specmargin measure`: prices measured on your own machine."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from specmargin.app.measure_schema import MeasureRequest
from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import find_device, find_model
from specmargin.cli import measure_gpu_view, measure_view, render
from specmargin.cli import options as o
from specmargin.cli.requests import command
from specmargin.errors import InputError, needs_extra
from specmargin.files import check_new, write_text
from specmargin.measure.gpu.shapes import Shapes, shapes_of
from specmargin.measure.prompts import read_prompts
from specmargin.measure.records import Records
from specmargin.measure.steps import Order, Watcher, check_engine, measure_steps
from specmargin.prices.measured_schema import as_text

ROWS = 260  # approximate records of `measure gpu`, for the progress bar

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def _measure() -> None:
    """Measure prices of your own engine (vllm) or bare GPU (gpu), for --prices FILE."""


@command(app, MeasureRequest)
def vllm(
    request: MeasureRequest,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the price file, FILE.json.")],
    flags: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any engine argument, such as load_format=dummy."),
    ] = None,
    fit_only: Annotated[
        bool, typer.Option("--fit-only", help="Start no engine: fit the rows measured so far.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Discard an earlier measurement and start again.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Time steps of your own vLLM and fit a price file.

    Starts the engine without speculation, with forced drafts (independent tokens, and repeats of one token, which
    separate experts from positions) and with a drafter: the model's MTP head, or yours (--drafter). Times its steps
    inside the engine, without async scheduling, and fits kernels, engine time and the drafter's passes. Every row is
    written to FILE.rows.jsonl immediately: run the command again to resume. Examples:

      specmargin measure vllm Qwen/Qwen3-30B-A3B -o mine.json --set load_format=dummy

      specmargin plan qwen3-30b-a3b --gpu h200 --prices mine.json
    """
    check_new(output, force=force)
    architecture = find_model(request.model)
    order = Order(
        model=request.model,
        surface=request.surface,
        engine_args=_flags(flags or []),
        speculative=_speculative(request.drafter, architecture),
        prompts=() if request.prompts is None else read_prompts(Path(request.prompts), request.model),
        routes=architecture.is_moe,
        temperature=request.temperature,
        clock=str(request.clock),
        steps=request.steps,
        repeats=request.repeats,
    )
    records, log = Records(path=output.with_suffix(".rows.jsonl")), output.with_suffix(".log")
    records.check(order.header(), fresh=force and not fit_only)
    if not fit_only:
        check_engine()
        records.begin(order.header(), fresh=force)
        with _interruptible(records), _watching() as watch:
            measure_steps(order, records, deadline=time.time() + 60.0 * request.minutes, log=log, watch=watch)
    method = str((order.speculative or {}).get("method", ""))
    with needs_extra("measure"):
        from specmargin.measure.pricing import price_file
    fitted = price_file(records.rows(), records.engines(), architecture, drafter_method=method)
    write_text(output, as_text(fitted.file), force=force)
    if json:
        render.json_out(measure_view.payload(fitted, records.failures()))
    else:
        measure_view.show(fitted, records.failures(), output, log)


def _speculative(given: str | None, architecture: Architecture) -> dict[str, Any] | None:
    """The drafter to time: the one given, or the head that the model itself has."""
    if given is None:
        return {"method": "mtp"} if architecture.draft_head is not None else None
    return None if given.strip().lower() == "none" else _mapping(given, "--drafter")


@app.command()
def gpu(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the laws, FILE.json.")],
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="Model whose shapes are timed: a name, a config.json or a folder.")
    ] = "qwen3-30b-a3b",
    name: Annotated[str, typer.Option("--gpu", help="The device's name for --gpu, as in `specmargin gpus`.")] = "h200",
    repeats: Annotated[int, typer.Option(min=3, help="Timings per kernel, of which the median is used.")] = 15,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time no further kernels after this long.")] = 5.0,
    force: Annotated[bool, typer.Option("--force", help="Discard an earlier measurement and start again.")] = False,
    fit_only: Annotated[bool, typer.Option("--fit-only", help="Time nothing: fit the rows measured so far.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Time kernels of a GPU without an engine and fit laws to them.

    Fused experts over positions and distinct experts, dense products and the LM head, attention with 1 to 16 queries
    per sequence (grouped, and absorbed MLA), launches, copy bandwidth and matrix rate. Every kernel is first checked
    against float64. Rows are written to FILE.rows.jsonl immediately: run the command again to resume. Examples:

      specmargin measure gpu qwen3-30b-a3b --gpu h200 -o mine.json

      specmargin price qwen3-30b-a3b --gpu h200 --batch 8 --depth 3 --prices mine.json
    """
    check_new(output, force=force)
    name, shapes = find_device(name).name, shapes_of(find_model(model))
    records, header = Records(path=output.with_suffix(".rows.jsonl")), {"model": shapes.model, "gpu": name}
    records.check(header, fresh=force and not fit_only)
    if not fit_only:
        with needs_extra("measure-gpu"):
            from specmargin.measure.gpu.bench import check_gpu
        check_gpu()
        records.begin(header, fresh=force)
        _time_kernels(shapes, records, repeats=repeats, deadline=time.time() + 60.0 * minutes)
    with needs_extra("measure"):
        from specmargin.measure.gpu.laws import kernel_report
    report = kernel_report(list(records.read()), shapes, name)
    write_text(output, measure_gpu_view.as_text(report), force=force)
    if json:
        render.json_out(measure_gpu_view.payload(report))
    else:
        measure_gpu_view.show(report, output)


def _time_kernels(shapes: Shapes, records: Records, *, repeats: int, deadline: float) -> None:
    from specmargin.measure.gpu.bench import Bench, everything, key_of

    done = frozenset(key_of(row) for row in records.read() if row.get("record") == "row")
    bench = Bench(repeats=repeats, deadline=deadline, done=done)
    with _interruptible(records), render.progress("kernels", ROWS) as advance:
        for record in everything(bench, shapes):
            records.append(record)
            advance(1)


@contextmanager
def _interruptible(records: Records) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        rows = sum(record.get("record") == "row" for record in records.read())
        raise InputError(
            f"interrupted; {rows} rows are saved in {records.path}: run the same command to resume"
        ) from None


@contextmanager
def _watching() -> Iterator[Watcher]:
    """One progress bar per engine."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shown = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shown, disable=not shown.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def watch(run: str, total: int, done: int) -> None:
            if run not in tasks:
                tasks[run] = bar.add_task(f"engine {run}", total=total)
            bar.update(tasks[run], completed=done)

        yield watch


def _flags(given: list[str]) -> dict[str, Any]:
    """Parse `name=value`; a value is a Python literal (0.8, True, {...}) or else text."""
    flags: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--set {text!r}: give NAME=VALUE, such as gpu_memory_utilization=0.8")
        try:
            flags[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            flags[name] = {"true": True, "false": False, "null": None}.get(value, value)
    return flags


def _mapping(text: str, option: str) -> dict[str, Any]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if not isinstance(value, dict):
        raise InputError(f"{option}: {text!r} is not a JSON object")
    return value
