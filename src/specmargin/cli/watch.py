"""`specmargin watch`."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from specmargin.app.engine_metrics import EngineReading, read_engine, reading_json
from specmargin.cli import options as o
from specmargin.cli import render, watch_view
from specmargin.cli.watch_view import Look
from specmargin.errors import EngineError, nearest_names
from specmargin.files import write_text
from specmargin.live.polling import Server, UnreachableError
from specmargin.live.reading import ServerReading

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def watch(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Address of the server, such as http://localhost:8000.")
    ] = None,
    interval: Annotated[float, typer.Option("--interval", help="Seconds between readings.")] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", help="Stop after this many readings. Default: until Ctrl-C.", min=1)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one reading since the server's start.")] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Only this engine of a data-parallel server (0, 1, …).")
    ] = None,
    dashboard: Annotated[
        Path | None, typer.Option("--dashboard", help="Write a Grafana dashboard to this file instead.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the dashboard file.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Monitor a running vLLM server with the plug-in: decisions, goodput and faults.

    Reads only the server's /metrics. The first reading covers the time since the server's start, each later one the
    time since the previous reading. --json prints one reading without waiting (more with --count). Of SGLang and
    TensorRT-LLM it shows their own metrics: requests, accepted length and acceptance by position.

    Examples:

      specmargin watch http://localhost:8000

      specmargin watch http://localhost:8000 --once --json

      specmargin watch --dashboard specmargin-grafana.json
    """
    if dashboard is not None:
        _write_dashboard(dashboard, url, force=force)
        return
    if url is None:
        raise EngineError("give the address of the server, such as http://localhost:8000 (or --dashboard FILE)")
    if not (0.1 <= interval <= 3600.0) or math.isnan(interval):
        raise EngineError(f"--interval must lie in 0.1..3600 seconds, got {interval:g}")
    readings = 1 if once else count
    limit = 1 if json and readings is None else readings
    server = Server.from_address(url)
    with suppress(KeyboardInterrupt):
        first = _first(server)
        if isinstance(first, EngineReading):
            _watch_engine(first, server, interval, limit, json=json)
            return
        looks = _looks(server, first, interval, limit, engine)
        if json:
            _print_json(looks)
        else:
            _show(looks)


def _first(server: Server) -> ServerReading | EngineReading:
    """The plug-in's metrics, or those of an engine that has no plug-in."""
    try:
        return server.read()
    except UnreachableError:
        raise
    except EngineError as missing:
        try:
            return read_engine(server, only=("sglang", "trtllm"))
        except EngineError:
            raise missing from None


def _watch_engine(now: EngineReading, server: Server, every_seconds: float, count: int | None, *, json: bool) -> None:
    """Later failures are shown and retried, except at the last reading."""
    out, before, fault = render.console(), None, None
    for number in itertools.count(1):
        if fault is not None:
            out.print(f"{fault}; retrying.", style="red", markup=False)
        elif json:
            render.json_out(reading_json(now, before))
        else:
            out.print(watch_view.engine_view(now, before))
        if number == count:
            break
        time.sleep(every_seconds)
        try:
            now, before, fault = read_engine(server, only=(now.engine,)), now, None
        except EngineError as error:
            fault = str(error)
    if fault is not None:
        raise EngineError(fault)


def _looks(
    server: Server, first: ServerReading, every_seconds: float, count: int | None, engine: str | None
) -> Iterator[Look]:
    """A server that does not answer the first reading is an error; a later failure is one only at the last reading."""
    now, before, fault = first, None, None
    for number in itertools.count(1):
        yield Look(url=server.url, now=now, before=before, engines=_engines(now, engine), fault=fault)
        if number == count:
            break
        time.sleep(every_seconds)
        try:
            now, before, fault = server.read(), now, None
        except EngineError as error:  # unreachable, or restarting and still without the plug-in's metrics
            fault = str(error)
    if fault is not None:
        raise EngineError(fault)


def _engines(reading: ServerReading, wanted: str | None) -> tuple[str, ...]:
    if wanted is None:
        return tuple(reading.engines)
    if wanted not in reading.engines:
        names = ", ".join(reading.engines)
        raise EngineError(
            f"--engine: there is no engine {wanted!r}{nearest_names(wanted, reading.engines)}; it has {names}"
        )
    return (wanted,)


def _print_json(looks: Iterator[Look]) -> None:
    for look in looks:
        if look.fault is None:
            render.json_out(watch_view.payload(look))


def _show(looks: Iterator[Look]) -> None:
    out = render.console()
    if not out.is_terminal:
        for look in looks:
            out.print(watch_view.view(look))
        return
    with Live(console=out, auto_refresh=False) as live:
        for look in looks:
            live.update(watch_view.view(look), refresh=True)


def _write_dashboard(path: Path, url: str | None, *, force: bool) -> None:
    if url is not None:
        raise EngineError("--dashboard writes a file and reads no server: leave out the address")
    text = resources.files("specmargin.live").joinpath("grafana.json").read_text(encoding="utf-8")
    write_text(path, text, force=force)
    typer.echo(f"Wrote {path}: import it in Grafana (Dashboards, New, Import) and choose your Prometheus data source.")
