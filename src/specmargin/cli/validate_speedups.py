"""`specmargin validate speedups FILE.csv`: measured speed-ups against predictions and simple rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from specmargin.cli import render
from specmargin.errors import InputError, needs_extra

if TYPE_CHECKING:
    from specmargin.validation.speedups import PredictedPoint, Ranges, SpeedupLine, SpeedupReport

_SHOWN_ROWS = 20


def validate_speedups(files: Sequence[str], *, figure: Path | None, force: bool, json: bool) -> None:
    with needs_extra("simulate"):
        from specmargin.validation.points_schema import read_points
        from specmargin.validation.speedups import losses, predict, ranges, speedup_lines
    if len(files) != 1:
        raise InputError("validate speedups needs one FILE.csv with measured rows (columns: docs/reference/files.md)")
    if figure is not None:
        from specmargin.figures.files import check_target

        check_target(figure, force=force)
    path = Path(files[0])
    points = read_points(path)
    with render.progress("speed-ups", len(points)) as advance:
        report = predict(points, path.parent, advance)
    if not report.predicted:
        raise InputError(f"{path}: no row could be predicted; the first: {next(iter(report.refused.values()))}")
    lines, spread = speedup_lines(report), ranges(report)
    if figure is not None:
        from specmargin.figures.files import save
        from specmargin.figures.validation import speedups_figure

        save(speedups_figure(report).chart(), figure)
    if json:
        render.json_out(_payload(report, lines, spread))
    else:
        out = render.console()
        _show(out, report, lines, losses(report))
        _show_ranges(out, report, spread)
        if figure is not None:
            print(f"Wrote {figure}")


def _show(out: Console, report: SpeedupReport, lines: Sequence[SpeedupLine], lost: Sequence[PredictedPoint]) -> None:
    rules = list(dict.fromkeys(line.rule for line in lines))
    everything = {line.rule: line for line in lines if line.group == "all rows"}
    columns = [("all rows", "left"), ("rows", "right"), ("median error", "right"), ("bias", "right")]
    columns += [("90th percentile", "right"), ("rank correlation", "right"), ("right calls", "right")]
    shown = render.table("Speed-up of speculation, predicted with the measured accept length", columns)
    for rule, line in everything.items():
        rank = "" if line.rank_correlation is None else f"{line.rank_correlation:.2f}"
        cells = (
            f"{line.median_error:.1%}",
            f"{line.bias:+.1%}",
            f"{line.p90_error:.0%}",
            rank,
            f"{line.right_calls:.0%}",
        )
        shown.add_row(rule, str(line.rows), *cells)
    out.print(shown)
    out.print()
    groups = list(dict.fromkeys(line.group for line in lines if line.group != "all rows"))
    shown = render.table(
        "Median error (bias) by group", [("group", "left"), ("rows", "right"), *((rule, "right") for rule in rules)]
    )
    by_key = {(line.group, line.rule): line for line in lines}
    for group in groups:
        errors = [_cell(by_key[group, rule]) for rule in rules]
        shown.add_row(group, str(by_key[group, rules[0]].rows), *errors)
    out.print(shown)
    _show_loops(out, report)
    _show_losses(out, lost)
    for name, reason in report.refused.items():
        out.print(f"not predicted: {name}: {reason}", style="dim", markup=False)


def _show_loops(out: Console, report: SpeedupReport) -> None:
    from specmargin.validation.speedups import loop_errors, source_median

    text = f"median of the sources' median errors {source_median(report):.1%}"
    loops = loop_errors(report)
    if loops is not None:
        text += (
            f"; {loops.rows} rows of whole requests are predicted as a closed loop (plan --concurrency): median error "
            f"{loops.median_error:.1%}, bias {loops.bias:+.1%} (as rounds and prompts one after another "
            f"{loops.round_median_error:.1%}); {loops.not_simulated} of unknown lengths, or that do not fit on the "
            "assumed GPUs, as rounds"
        )
    out.print(text, style="dim", markup=False)


def _show_ranges(out: Console, report: SpeedupReport, spread: Ranges | None) -> None:
    if spread is None:
        return
    by_source: dict[str, list[bool]] = {}
    for row, inside in zip(report.predicted, spread.inside, strict=True):
        by_source.setdefault(row.point.source, []).append(bool(inside))
    shares = ", ".join(f"{name} {sum(held) / len(held):.0%}" for name, held in sorted(by_source.items()))
    out.print()
    out.print(
        f"80% range, each from the errors of the other sources: holds {spread.inside.mean():.0%} of the rows, median "
        f"of high over low {spread.median_width:.2f}; by source: {shares}",
        style="dim",
        markup=False,
    )


def _cell(line: SpeedupLine) -> str:
    return "" if math.isnan(line.median_error) else f"{line.median_error:.1%} ({line.bias:+.0%})"


def _show_losses(out: Console, lost: Sequence[PredictedPoint]) -> None:
    if not lost:
        return
    out.print()
    columns = [("row", "left"), ("source", "left"), ("model", "left"), ("batch", "right"), ("depth", "right")]
    shown = render.table(
        "Rows where speculation lost, or was predicted to", [*columns, ("measured", "right"), ("predicted", "right")]
    )
    for row in lost[:_SHOWN_ROWS]:
        point = row.point
        numbers = (str(point.batch), str(point.depth), f"{point.speedup:.2f}×", f"{row.speedup:.2f}×")
        shown.add_row(point.id, point.source, Path(point.model).name, *numbers)
    out.print(shown)
    if len(lost) > _SHOWN_ROWS:
        out.print(f"and {len(lost) - _SHOWN_ROWS} more (--json lists all)", style="dim")


def _payload(report: SpeedupReport, lines: Sequence[SpeedupLine], spread: Ranges | None) -> dict[str, Any]:
    from specmargin.validation.speedups import source_median

    return {
        "schema": "specmargin.validate-speedups/1",
        "lines": [
            {
                name: None if isinstance(value, float) and math.isnan(value) else value
                for name, value in asdict(line).items()
            }
            for line in lines
        ],
        "rows": [
            {
                "id": row.point.id,
                "source": row.point.source,
                "measured": row.point.speedup,
                "predicted": row.speedup,
                "speedup_low": None if spread is None else float(spread.low[index]),
                "speedup_high": None if spread is None else float(spread.high[index]),
                "datasheet": row.datasheet_speedup,
                "prices": row.prices,
                "round": row.round_speedup,
                "closed_loop": None if row.loop is None else asdict(row.loop),
            }
            for index, row in enumerate(report.predicted)
        ],
        "source_median_error": source_median(report),
        "range_coverage": None if spread is None else float(spread.inside.mean()),
        "not_predicted": report.refused,
    }
