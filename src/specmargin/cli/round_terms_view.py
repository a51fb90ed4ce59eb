"""Own terms of a round by engine, in `specmargin validate speedups`: held-out errors, and how far each term moved."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from specmargin.cli import render

if TYPE_CHECKING:
    from specmargin.validation.round_terms import EngineFit, EngineFits, HeldOut

_NAMES = ("verify step", "verified sequence", "draft pass")


def payload(fits: EngineFits) -> dict[str, Any]:
    return {"fits": [asdict(fit) for fit in fits.fits], "not_fitted": fits.not_fitted}


def show(out: Console, fits: EngineFits) -> None:
    if not fits.fits and not fits.not_fitted:
        return
    out.print()
    if fits.fits:
        _show_errors(out, fits)
        _show_terms(out, fits)
    for engine, reason in fits.not_fitted.items():
        out.print(f"{engine}: no terms of its own are fitted ({reason})", style="dim", markup=False)
    out.print(
        "own terms: fitted to the engine's rows, shrunk to the prior, which is vLLM's measured terms. Bundled engine "
        "times keep the prior: no term is fitted to these rows",
        style="dim",
    )


def _show_errors(out: Console, fits: EngineFits) -> None:
    columns = [("engine", "left"), ("rows", "right"), ("left out of the fit", "left")]
    columns += [("prior: median error (bias)", "right"), ("own terms", "right")]
    shown = render.table("Terms of a round: the prior against own terms, on rows left out", columns)
    for fit in fits.fits:
        for line in fit.held_out:
            shown.add_row(
                fit.engine,
                str(fit.rows),
                _left_out(line),
                f"{line.prior_median_error:.1%} ({line.prior_bias:+.0%})",
                f"{line.median_error:.1%} ({line.bias:+.0%})",
            )
    out.print(shown)
    out.print()


def _left_out(line: HeldOut) -> str:
    if line.groups == 1:
        return f"its only {line.by}: the prior alone"
    return f"one {line.by} of {line.groups} at a time"


def _show_terms(out: Console, fits: EngineFits) -> None:
    columns = [("engine", "left"), ("term", "left"), ("prior → all rows", "right"), ("with one left out", "right")]
    shown = render.table("How far own terms move, in ms", columns)
    for fit in fits.fits:
        for index, name in enumerate(_NAMES):
            shown.add_row(fit.engine, name, *_moved(fit, index))
    out.print(shown)
    out.print()


def _moved(fit: EngineFit, index: int) -> tuple[str, str]:
    prior, fitted, low, high = (values[index] * 1e3 for values in (fit.prior, fit.fitted, fit.low, fit.high))
    return f"{prior:.3f} → {fitted:.3f}", f"{low:.3f} to {high:.3f}"
