"""Speed-ups that others measured and published, against predictions and simple rules.

    python -m lab.validation.speedups [FILE.csv]    default: the 237 of lab/data/published/speedups

`specmargin validate speedups FILE.csv` shows the same errors by group and row. Here, beside them: whether terms of a
round fitted to an engine's own rows would predict the rest better.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from lab import SPEEDUPS
from lab.terminal import console, note, parser, progress, run, table
from lab.validation.accuracy import Accuracy
from lab.validation.round_terms import RoundRow, engine_fits, show_fits
from specmargin.validation.points_schema import read_points
from specmargin.validation.speedups import (
    SpeedupLine,
    SpeedupReport,
    loop_errors,
    predict,
    ranges,
    source_median,
    speedup_lines,
)


def report(out: Console, file: Path = SPEEDUPS) -> list[Accuracy]:
    points = read_points(file)
    with progress("speed-ups", len(points)) as advance:
        predicted = predict(points, file.parent, advance)
    rules = {line.rule: line for line in speedup_lines(predicted) if line.group == "all rows"}
    _show_rules(out, rules)
    _show_rest(out, predicted)
    show_fits(out, engine_fits([RoundRow.of(row) for row in predicted.predicted]))
    out.print()
    best, datasheet = rules["specmargin"], rules["datasheet"]
    errors = {"tables": _median_and_bias(best), "datasheet": _median_and_bias(datasheet)}
    return [Accuracy(what="published speed-ups (bias), by the best prices of each row", count=best.rows, errors=errors)]


def _median_and_bias(line: SpeedupLine) -> str:
    return f"{line.median_error:.1%} ({line.bias:+.1%})"


def _show_rules(out: Console, rules: dict[str, SpeedupLine]) -> None:
    shown = table(
        "Speed-up of speculation, predicted with the measured accept length",
        ("all rows",),
        ("rows", "median error", "bias", "90th percentile", "rank correlation", "right calls"),
    )
    for rule, line in rules.items():
        rank = "" if line.rank_correlation is None else f"{line.rank_correlation:.2f}"
        errors = (f"{line.median_error:.1%}", f"{line.bias:+.1%}", f"{line.p90_error:.0%}")
        shown.add_row(rule, str(line.rows), *errors, rank, f"{line.right_calls:.0%}")
    out.print(shown)


def _show_rest(out: Console, predicted: SpeedupReport) -> None:
    note(out, f"median of the sources' median errors {source_median(predicted):.1%}")
    errors, spread = loop_errors(predicted), ranges(predicted)
    if errors is not None:
        note(out, f"{errors[0].rows} rows of whole requests, as a closed loop: {_median_and_bias(errors[0])}")
    if spread is not None:
        note(out, f"80% range, each from the errors of the other sources: holds {spread.inside.mean():.0%} of the rows")
    for name, reason in predicted.refused.items():
        note(out, f"not predicted: {name}: {reason}")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("file", type=Path, nargs="?", default=SPEEDUPS, metavar="FILE.csv")
    report(console(), options.parse_args().file)


if __name__ == "__main__":
    run(main)
