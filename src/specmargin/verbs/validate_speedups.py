"""Compare speed-ups that were measured, published or yours, with predictions and with simple rules.

FILE.csv has one row per measurement; docs/reference/files.md lists its columns. Each row is predicted with its measured
accept length. Rows that cannot be predicted are an error, unless --allow-skipped is given.

Example: specmargin validate speedups mine.csv --plot speedups.png
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Line, Table, dim, left, right
from specmargin.answers.outputs_schema import ChartOutputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import Progress, silent, verb
from specmargin.errors import InputError, needs_extra

if TYPE_CHECKING:
    from specmargin.show.figures.figure import Chart
    from specmargin.validation.speedups import PredictedPoint, Ranges, SpeedupLine, SpeedupReport

_SHOWN_ROWS = 20
_SHOWN_REASONS = 3
_SHOWN_IDS = 12


class SpeedupsRequest(Request):
    file: Annotated[
        Path,
        Field(description="Measured rows (columns: docs/reference/files.md)."),
        Shown(argument=True, metavar="FILE.csv"),
    ]
    allow_skipped: Annotated[
        bool, Field(description="Report the other rows where some cannot be predicted (named in the answer).")
    ] = False


@verb(SpeedupsRequest, outputs=ChartOutputs)
def validate_speedups(request: SpeedupsRequest, progress: Progress = silent) -> SpeedupsAnswer:
    with needs_extra("simulate"):
        from specmargin.validation.points_schema import read_points
        from specmargin.validation.speedups import losses, predict, ranges, speedup_lines
    points = read_points(request.file)
    with progress("speed-ups", len(points)) as advance:
        report = predict(points, request.file.parent, advance)
    if report.refused and not (request.allow_skipped and report.predicted):
        raise InputError(_skipped(request.file, report, len(points)))
    return SpeedupsAnswer(
        request=request, report=report, lines=speedup_lines(report), ranges=ranges(report), lost=losses(report)
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SpeedupsAnswer(Answer[SpeedupsRequest]):
    report: SpeedupReport
    lines: Sequence[SpeedupLine]  # errors by rule and group
    ranges: Ranges | None
    lost: Sequence[PredictedPoint]

    schema: ClassVar[str] = "specmargin.validate-speedups/1"

    @property
    def verdict(self) -> str:
        ours = next(line for line in self.lines if line.group == "all rows")
        return f"{ours.rows} rows: median error {ours.median_error:.1%}, bias {ours.bias:+.1%}"

    def table(self) -> list[dict[str, Any]]:
        """One row per measurement that could be predicted."""
        spread = self.ranges
        return [
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
            for index, row in enumerate(self.report.predicted)
        ]

    def values(self) -> dict[str, Any]:
        from specmargin.validation.speedups import source_median

        return {
            "lines": [
                {
                    name: None if isinstance(value, float) and math.isnan(value) else value
                    for name, value in asdict(line).items()
                }
                for line in self.lines
            ],
            "rows": self.table(),
            "source_median_error": source_median(self.report),
            "range_coverage": None if self.ranges is None else float(self.ranges.inside.mean()),
            "not_predicted": self.report.refused,
        }

    def blocks(self) -> Iterator[Block]:
        yield _everything(self.lines)
        yield GAP
        yield _by_group(self.lines)
        yield _loops(self.report)
        yield from _losses(self.lost)
        for reason, ids in self.report.refused_by_reason.items():
            yield dim(f"not predicted: {_listed(ids)}: {reason}")
        if self.ranges is not None:
            yield GAP
            yield _coverage(self.report, self.ranges)

    def chart(self) -> Chart:
        from specmargin.show.figures.validation import speedups_figure

        return speedups_figure(self.report).chart()


def _skipped(file: Path, report: SpeedupReport, rows: int) -> str:
    """One sentence: how many rows cannot be predicted, and the first reasons."""
    reasons = report.refused_by_reason
    first = "; ".join(f"{_listed(ids)}: {reason}" for reason, ids in list(reasons.items())[:_SHOWN_REASONS])
    more = f"; and {len(reasons) - _SHOWN_REASONS} more reasons" if len(reasons) > _SHOWN_REASONS else ""
    hint = " (--allow-skipped reports the others)" if report.predicted else ""
    return f"{file}: {len(report.refused)} of {rows} rows cannot be predicted{hint}: {first}{more}"


def _listed(ids: Sequence[str]) -> str:
    """Ids of rows, cut where they are many."""
    shown = ", ".join(ids[:_SHOWN_IDS])
    return shown if len(ids) <= _SHOWN_IDS else f"{shown} and {len(ids) - _SHOWN_IDS} more"


def _everything(lines: Sequence[SpeedupLine]) -> Table:
    return Table(
        title="Speed-up of speculation, predicted with the measured accept length",
        columns=[
            *left("all rows"),
            *right("rows", "median error", "bias", "90th percentile", "rank correlation", "right calls"),
        ],
        rows=[
            [
                line.rule,
                str(line.rows),
                f"{line.median_error:.1%}",
                f"{line.bias:+.1%}",
                f"{line.p90_error:.0%}",
                "" if line.rank_correlation is None else f"{line.rank_correlation:.2f}",
                f"{line.right_calls:.0%}",
            ]
            for line in lines
            if line.group == "all rows"
        ],
    )


def _by_group(lines: Sequence[SpeedupLine]) -> Table:
    rules = list(dict.fromkeys(line.rule for line in lines))
    by_key = {(line.group, line.rule): line for line in lines}
    groups = dict.fromkeys(line.group for line in lines if line.group != "all rows")
    return Table(
        title="Median error (bias) by group",
        columns=[*left("group"), *right("rows", *rules)],
        rows=[
            [group, str(by_key[group, rules[0]].rows), *(_cell(by_key[group, rule]) for rule in rules)]
            for group in groups
        ],
    )


def _cell(line: SpeedupLine) -> str:
    return "" if math.isnan(line.median_error) else f"{line.median_error:.1%} ({line.bias:+.0%})"


def _loops(report: SpeedupReport) -> Line:
    from specmargin.validation.speedups import loop_errors, source_median

    text = f"median of the sources' median errors {source_median(report):.1%}"
    errors = loop_errors(report)
    if errors is not None:
        loops, rounds = errors
        not_simulated = sum(row.point.of_whole_requests and row.loop is None for row in report.predicted)
        text += (
            f"; {loops.rows} rows of whole requests are predicted as a closed loop (plan --concurrency): median error "
            f"{loops.median_error:.1%}, bias {loops.bias:+.1%} (as rounds and prompts one after another "
            f"{rounds.median_error:.1%}); {not_simulated} of unknown lengths, or that do not fit on the assumed GPUs, "
            "as rounds"
        )
    return dim(text)


def _losses(lost: Sequence[PredictedPoint]) -> Iterator[Block]:
    if not lost:
        return
    yield GAP
    yield Table(
        title="Rows where speculation lost, or was predicted to",
        columns=[*left("row", "source", "model"), *right("batch", "depth", "measured", "predicted")],
        rows=[
            [
                row.point.id,
                row.point.source,
                Path(row.point.model).name,
                str(row.point.batch),
                str(row.point.depth),
                f"{row.point.speedup:.2f}×",
                f"{row.speedup:.2f}×",
            ]
            for row in lost[:_SHOWN_ROWS]
        ],
    )
    if len(lost) > _SHOWN_ROWS:
        yield dim(f"and {len(lost) - _SHOWN_ROWS} more (--json lists all)")


def _coverage(report: SpeedupReport, spread: Ranges) -> Line:
    by_source: dict[str, list[bool]] = {}
    for row, inside in zip(report.predicted, spread.inside, strict=True):
        by_source.setdefault(row.point.source, []).append(bool(inside))
    shares = ", ".join(f"{name} {sum(held) / len(held):.0%}" for name, held in sorted(by_source.items()))
    return dim(
        f"80% range, each from the errors of the other sources: holds {spread.inside.mean():.0%} of the rows, median "
        f"of high over low {spread.median_width:.2f}; by source: {shares}"
    )
