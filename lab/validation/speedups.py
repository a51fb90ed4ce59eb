"""Speed-ups that others measured and published, against predictions and simple rules.

    python -m lab.validation.speedups [FILE.csv ...]    default: both files of lab/data/published
    python -m lab.validation.speedups --write           and write the tables of docs/results/speedups.md

`specmargin validate speedups FILE.csv` shows the same errors by group and row. Here, beside them: all files together,
with the rows of one box (llama.cpp, Apple, host memory) apart, every loss, and whether terms of a round fitted to an
engine's own rows would predict the rest better.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lab import MORE_SPEEDUPS, ONE_BOX, SPEEDUPS
from lab.terminal import console, note, parser, progress, run, table
from lab.validation.accuracy import Accuracy
from lab.validation.round_terms import RoundRow, engine_fits, show_fits
from lab.validation.speedup_page import write_page
from lab.validation.speedup_sets import RowSet, calls_text, group_cells, group_headings, loss_text
from specmargin.validation.points_schema import read_points
from specmargin.validation.speedups import SpeedupLine, predict, source_median, speedup_lines

FILES = (SPEEDUPS, MORE_SPEEDUPS)


def row_sets(files: Sequence[Path] = FILES) -> list[RowSet]:
    """One per file, then all of them together, then the rows of one box."""
    reports = []
    for file in files:
        points = read_points(file)
        with progress(file.parent.name, len(points)) as advance:
            reports.append(predict(points, file.parent, advance))
    return RowSet.of_reports([file.parent.name for file in files], reports, apart=ONE_BOX)


def report(out: Console, files: Sequence[Path] = FILES, *, write: bool = False) -> list[Accuracy]:
    sets = row_sets(files)
    for rows in sets:
        _show(out, rows)
    first = sets[0]
    show_fits(out, engine_fits([RoundRow.of(row) for row in first.report.predicted]))
    out.print()
    if write:
        note(out, f"wrote {write_page(sets)}")
    return [accuracy for rows in sets[: len(files)] for accuracy in _accuracy(rows)]


def _accuracy(rows: RowSet) -> list[Accuracy]:
    rules = {line.rule: line for line in speedup_lines(rows.report) if line.group == "all rows"}
    best, datasheet = rules["specmargin"], rules["datasheet"]
    errors = {"tables": _median_and_bias(best), "datasheet": _median_and_bias(datasheet)}
    return [
        Accuracy(what=f"published {rows.name} (bias), by the best prices of each row", count=best.rows, errors=errors)
    ]


def _median_and_bias(line: SpeedupLine) -> str:
    return f"{line.median_error:.1%} ({line.bias:+.1%})"


def _show(out: Console, rows: RowSet) -> None:
    shown = table(
        f"{rows.name}: speed-up of speculation, predicted with the measured accept length",
        ("all rows",),
        ("rows", "median error", "bias", "90th percentile", "rank correlation", "right calls"),
    )
    for line in speedup_lines(rows.report):
        if line.group == "all rows":
            rank = "" if line.rank_correlation is None else f"{line.rank_correlation:.2f}"
            errors = (f"{line.median_error:.1%}", f"{line.bias:+.1%}", f"{line.p90_error:.0%}")
            shown.add_row(line.rule, str(line.rows), *errors, rank, f"{line.right_calls:.0%}")
    out.print(shown)
    groups = table(f"{rows.name}: median error (bias) by group; *: behind the datasheet", *group_headings())
    for group in rows.judged.groups:
        groups.add_row(*group_cells(group))
    out.print(groups)
    note(
        out, f"{rows.name}: rows where speculation lost or was predicted to, and what a round exceeds a plain step by:"
    )
    for row, call in rows.judged.losses:
        note(out, loss_text(row, call))
    note(out, f"median of the sources' median errors {source_median(rows.report):.1%}")
    for text in calls_text(rows):
        note(out, text)
    for reason, ids in rows.report.refused_by_reason.items():
        note(out, f"not predicted: {', '.join(ids)}: {reason}")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("files", type=Path, nargs="*", default=[*FILES], metavar="FILE.csv")
    options.add_argument("--write", action="store_true", help="write the tables of docs/results/speedups.md")
    given = options.parse_args()
    report(console(), given.files, write=given.write)


if __name__ == "__main__":
    run(main)
