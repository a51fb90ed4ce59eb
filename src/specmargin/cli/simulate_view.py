"""Simulated runs: running, saving, drawing, tables and JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from specmargin.app.serving import serving_of
from specmargin.app.simulation_schema import SimulationFile
from specmargin.cli import render
from specmargin.errors import InputError, needs_extra
from specmargin.simulator.results import Result
from specmargin.simulator.run import check, expected_requests, with_tables
from specmargin.simulator.run import simulate as run
from specmargin.simulator.serving import Serving

SCHEMA = "specmargin.simulate/1"
_HOURS = 3  # shortest run whose figure compares policies by hour


# --- running ---


def simulate_policies(described: SimulationFile, folder: Path, names: list[str], *, log_steps: bool) -> list[Result]:
    serving = serving_of(described, folder)
    for name in names:
        check(serving, name)
    serving = with_tables(serving)
    return [_simulate_policy(serving, name, log_steps) for name in names]


def _simulate_policy(serving: Serving, name: str, log_steps: bool) -> Result:
    with render.progress(name, expected_requests(serving)) as advance:
        return run(replace(serving, policy=name), log_steps=log_steps, advance=advance)


def save_tables(result: Result, requests: Path | None, steps: Path | None) -> None:
    if requests is None and steps is None:
        return
    with needs_extra("simulate"):
        import polars as pl

    for path, columns in ((requests, result.request_columns()), (steps, result.step_columns())):
        if path is not None:
            try:
                pl.DataFrame(columns).write_parquet(path)
            except OSError as error:
                raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def draw(path: Path, described: SimulationFile, results: list[Result]) -> None:
    with needs_extra("figures"):
        from specmargin.figures.files import save
        from specmargin.figures.simulation import compared_figure, day_figure, policies_figure

    title = f"{described.scenario.model} on {described.scenario.gpu}"
    if len(results) == 1:
        result = results[0]
        subtitle = f"policy: {result.serving.policy}; {result.requests.count:,} requests, modelled"
        save(day_figure(title, result.timeline(), subtitle=subtitle), path)
        return
    rows, same = [result.policy_row() for result in results], "the same requests, modelled"
    hourly = [row | {"policy": result.serving.policy} for result in results for row in result.hourly()]
    if len({row["hour"] for row in hourly}) >= _HOURS:
        save(compared_figure(title, rows, hourly, subtitle=same), path)
    else:
        save(policies_figure(title, rows, subtitle=same), path)


# --- showing ---


def show(described: SimulationFile, results: list[Result], *, json: bool) -> None:
    if json:
        render.json_out(_payload(described, results))
    else:
        _show(render.console(), described, results)


def _payload(described: SimulationFile, results: list[Result]) -> dict[str, Any]:
    """The results of the first policy at the top level, of all policies under `policies`."""
    slo, price = described.slo.slo(), described.gpu_hour_price
    runs = []
    for result in results:
        name = result.serving.policy
        runs.append(
            {"policy": name} | result.summary(slo, price) | {"seconds_by_component": result.seconds_by_component()}
        )
    first = {key: value for key, value in runs[0].items() if key != "policy"}
    sources = {name: str(source) for name, source in results[0].serving.pricer.sources.items()}
    return {
        "schema": SCHEMA,
        "model": described.scenario.model,
        "gpu": described.scenario.gpu,
        "policy": runs[0]["policy"],
        **first,
        "policies": runs,
        "sources": sources | {"rounds": results[0].serving.bank.source},
        "description": described.description(),
    }


def _show(out: Console, described: SimulationFile, results: list[Result]) -> None:
    slo, price = described.slo.slo(), described.gpu_hour_price
    rows = [result.summary(slo, price) for result in results]
    out.print(_headline(results, rows), style="bold")
    out.print()
    columns = [
        ("policy", "left"),
        ("tok/s", "right"),
        ("busy", "right"),
        ("TTFT p50", "right"),
        ("p99", "right"),
    ]
    columns += [("TPOT p50", "right"), ("p99", "right"), ("E2E p50", "right"), ("batch", "right"), ("depth", "right")]
    columns += [("wasted", "right")] + ([("SLO", "right")] if slo else []) + ([("cost $", "right")] if price else [])
    shown = render.table("tokens per second; times in ms; wasted: share of drafts not accepted", columns)
    for result, row in zip(results, rows, strict=True):
        times = [_time(row[key][quantile]) for key, quantile in _SHOWN_TIMES]
        wasted = row["wasted"] / row["drafted"] if row["drafted"] else 0.0
        cells = [f"{row['goodput_tokens_per_second']:,.0f}", f"{row['busy_tokens_per_second']:,.0f}", *times]
        cells += [f"{row['mean_batch']:.1f}", f"{row['mean_draft_depth']:.2f}", f"{wasted:.0%}"]
        cells += [f"{row['slo_attainment']:.1%}"] if slo else []
        cells += [f"{row['cost']:,.2f}"] if price else []
        shown.add_row(result.serving.policy, *cells)
    out.print(shown)
    out.print()
    _show_time(out, results)
    notes = {name: source for name, source in results[0].serving.pricer.sources.items() if name != "acceptance"}
    render.sources(out, notes)
    out.print(f"  rounds: {results[0].serving.bank.source}", style="dim", markup=False)
    out.print(f"  engine: {ASSUMPTIONS}", style="dim", markup=False)


_SHOWN_TIMES = (
    ("ttft_seconds", "p50"),
    ("ttft_seconds", "p99"),
    ("tpot_seconds", "p50"),
    ("tpot_seconds", "p99"),
    ("e2e_seconds", "p50"),
)
ASSUMPTIONS = "assumed: the vLLM V1 scheduler; no prefix cache; one round per step"


def _headline(results: list[Result], rows: list[dict[str, Any]]) -> str:
    served = f"{rows[0]['finished']:,} of {rows[0]['requests']:,} requests served"
    refused = f", {rows[0]['refused']:,} refused (would never fit)" if rows[0]["refused"] else ""
    if len(rows) == 1:
        return f"{served}{refused}, {rows[0]['committed']:,} tokens in {render.seconds(rows[0]['span_seconds'])}."
    best = max(range(len(rows)), key=lambda i: rows[i]["busy_tokens_per_second"])
    name, rate = results[best].serving.policy, rows[best]["busy_tokens_per_second"]
    return f"{served}{refused}; highest throughput while busy: {name}, {rate:,.0f} tokens/s."


def _time(value: float | None) -> str:
    """In milliseconds, three digits."""
    if value is None:
        return "-"
    return f"{value * 1e3:,.0f}" if value >= 0.1 else f"{value * 1e3:.3g}"


def _show_time(out: Console, results: list[Result]) -> None:
    parts = [result.seconds_by_component() for result in results]
    names = list(dict.fromkeys(name for part in parts for name in part))
    columns = [("component", "left"), *((result.serving.policy, "right") for result in results)]
    shown = render.table("busy time by component", columns)
    for name in names:
        cells = []
        for result, part in zip(results, parts, strict=True):
            cells.append(f"{part.get(name, 0.0) / max(result.busy_seconds, 1e-12):.1%}")
        shown.add_row(name, *cells)
    out.print(shown)
    out.print()
