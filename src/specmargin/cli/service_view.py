"""A load as whole requests, in the terminal: the service without speculation and under the plan's setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from specmargin.app.service import Service
from specmargin.cli import render

if TYPE_CHECKING:
    from specmargin.simulator.steady import Steady

_LEGEND = "ms/token: after the first; batch: decoding sequences; prefill: share of time"


def show(out: Console, service: Service, tpot_target_seconds: float | None, *, range_assumed: bool) -> None:
    out.print("service, including prefill and queueing (means)", style="bold")
    columns = ["", "tok/s", "per GPU", "ms/token", "TTFT", "batch", "draft", "prefill"]
    shown = render.table("", [(name, "right" if name else "left") for name in columns])
    for name, steady in (("no speculation", service.plain), ("with these flags", service.speculating)):
        shown.add_row(name, *_cells(steady, service.gpus))
    out.print(shown)
    out.print(_LEGEND, style="dim")
    out.print(_lengths(service.load.range_ratio, assumed=range_assumed), style="dim")
    if tpot_target_seconds is not None:
        met = (service.speculating.tpot_seconds or 0.0) <= tpot_target_seconds
        out.print(
            f"target of {tpot_target_seconds * 1e3:g} ms per token: {'met' if met else 'missed'} with these flags"
        )
    out.print()


def _lengths(range_ratio: float, *, assumed: bool) -> str:
    if range_ratio == 0.0:
        return "lengths: all equal"
    return f"lengths vary by ±{range_ratio:.0%}{', assumed (--range-ratio)' if assumed else ''}"


def _cells(steady: Steady, gpus: int) -> list[str]:
    return [
        render.tokens_per_second(steady.tokens_per_second),
        render.tokens_per_second(steady.tokens_per_second / gpus),
        "" if steady.tpot_seconds is None else f"{steady.tpot_seconds * 1e3:.2f}",
        render.seconds(steady.ttft_seconds),
        f"{steady.sequences:.0f}",
        f"{steady.depth:.1f}",
        f"{steady.prefill_share:.0%}",
    ]
