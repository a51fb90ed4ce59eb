"""Simulated runs: tables on screen and in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from specmargin.app.simulating import Simulated
from specmargin.cli import render
from specmargin.files import write_columns
from specmargin.simulator.results import Result


def save_tables(result: Result, requests: Path | None, steps: Path | None, *, force: bool) -> None:
    for path, columns in ((requests, result.request_columns()), (steps, result.step_columns())):
        if path is not None:
            write_columns(path, columns, force=force)


def show(answer: Simulated) -> None:
    out, results, rows = render.console(), answer.results, answer.rows
    slo, price = answer.described.slo.slo(), answer.described.gpu_hour_price
    out.print(answer.verdict, style="bold")
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


def _time(value: float | None) -> str:
    """In milliseconds, three digits."""
    if value is None:
        return "-"
    return f"{value * 1e3:,.0f}" if value >= 0.1 else f"{value * 1e3:.3g}"


def _show_time(out: Console, results: Sequence[Result]) -> None:
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
