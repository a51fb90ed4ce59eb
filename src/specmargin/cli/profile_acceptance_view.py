"""Tables of `specmargin profile acceptance`; the command is in `cli/profile.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from specmargin.app.acceptance_study import PRICE_TITLES, LadderPrices
from specmargin.cli import render
from specmargin.policies.study.ladder import OURS


def show(out: Console, payload: dict[str, Any]) -> None:
    whole = payload["categories"]["all"]
    accepted = sum(whole["survival"])
    out.print(
        f"{whole['rounds']:,} rounds of {payload['speculator'] or payload['source']}: {accepted:.2f} draft tokens "
        f"accepted on average, the first with probability {whole['survival'][0]:.3f}.",
        style="bold",
    )
    out.print()
    _show_survival(out, payload)
    if payload["calibration"]:
        left_out = whole["rounds"] - payload["calibrated_rounds"]
        if left_out:
            out.print(f"(excluded: {left_out:,} rounds of requests with missing confidences)", style="dim")
        _show_calibration(out, payload["calibration"])
    for prices in dict.fromkeys(row["prices"] for row in payload["ladder"]):
        _show_ladder(out, LadderPrices(prices), [row for row in payload["ladder"] if row["prices"] == prices])


def _show_survival(out: Console, payload: dict[str, Any]) -> None:
    depth = len(payload["categories"]["all"]["survival"])
    columns = [("category", "left"), ("rounds", "right"), *((f"S{d}", "right") for d in range(1, depth + 1))]
    shown = render.table("survival (product-limit estimate; S1 ± standard error over requests)", columns)
    for name, category in payload["categories"].items():
        first = f"{category['survival'][0]:.3f} ± {category['survival_stderr'][0]:.3f}"
        deeper = [f"{value:.3f}" for value in category["survival"][1:]]
        shown.add_row(name, f"{category['rounds']:,}", first, *deeper)
    out.print(shown)
    out.print()


def _show_calibration(out: Console, lines: Sequence[dict[str, Any]]) -> None:
    names = ("raw", "isotonic", "logistic", "calibrated")
    columns = [("depth", "right")]
    columns += [(f"{name}", "right") for name in names]
    shown = render.table("expected calibration error (log loss), requests held out", columns)
    for line in lines:
        cells = [f"{line[f'ece_{name}']:.4f} ({line[f'log_loss_{name}']:.4f})" for name in names]
        shown.add_row(str(line["depth"]), *cells)
    out.print(shown)
    out.print()


def _show_ladder(out: Console, prices: LadderPrices, rows: Sequence[dict[str, Any]]) -> None:
    concurrencies = list(dict.fromkeys(row["concurrency"] for row in rows))
    shown = render.table(
        f"goodput over the best fixed depth, by concurrency: {PRICE_TITLES[prices]}",
        [("policy", "left"), *((str(number), "right") for number in concurrencies)],
    )
    for policy in dict.fromkeys(row["policy"] for row in rows):
        gains = [f"{row['gain']:+.1%}" for row in rows if row["policy"] == policy]
        shown.add_row(policy, *gains, style="bold" if policy == OURS else None)
    out.print(shown)
    out.print()
