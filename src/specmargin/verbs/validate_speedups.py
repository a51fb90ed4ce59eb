"""Compare speed-ups that were measured, published or yours, with predictions and with simple rules.

FILE.csv has one row per measurement; docs/reference/files.md lists its columns. Each row is predicted with its measured
accept length. Rows that cannot be predicted are an error, unless --allow-skipped is given.

Example: specmargin validate speedups mine.csv --plot speedups.png
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Line, Table, dim, left, right
from specmargin.answers.outputs_schema import ChartOutputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import Progress, silent, verb
from specmargin.errors import InputError

if TYPE_CHECKING:
    from specmargin.show.figures.figure import Chart
    from specmargin.validation.calls import Call, GroupLine, Judged
    from specmargin.validation.speedups import PredictedPoint, SpeedupLine, SpeedupReport
    from specmargin.validation.token_speeds import SpeedError

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
    apart: Annotated[
        tuple[str, ...],
        Field(description="A source to judge apart from the others, as one group with its like; may be repeated."),
        Shown(metavar="SOURCE"),
    ] = ()


@verb(SpeedupsRequest, outputs=ChartOutputs)
def validate_speedups(request: SpeedupsRequest, progress: Progress = silent) -> SpeedupsAnswer:
    from specmargin.validation.calls import judge_rows
    from specmargin.validation.points_schema import read_points
    from specmargin.validation.speedups import predict, speedup_lines

    points = read_points(request.file)
    _check_apart(request, {point.source for point in points})
    with progress("speed-ups", len(points)) as advance:
        whole = predict(points, request.file.parent, advance)
    if whole.refused and not (request.allow_skipped and whole.predicted):
        raise InputError(_skipped(request.file, whole, len(points)))
    report, apart = whole.divided(request.apart)
    if not report.predicted:
        raise InputError(
            f"{request.file}: no row of the other sources can be predicted (--apart {' --apart '.join(request.apart)})"
        )
    return SpeedupsAnswer(
        request=request,
        report=report,
        lines=speedup_lines(report),
        judged=judge_rows(report.predicted),
        apart=judge_rows(apart.predicted) if apart.predicted else None,
    )


def _check_apart(request: SpeedupsRequest, sources: set[str]) -> None:
    if unknown := [name for name in request.apart if name not in sources]:
        raise InputError(
            f"--apart: {request.file} has no source {unknown[0]!r}; its sources are {', '.join(sorted(sources))}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SpeedupsAnswer(Answer[SpeedupsRequest]):
    report: SpeedupReport  # without the sources that are judged apart
    lines: Sequence[SpeedupLine]  # errors by rule and group
    judged: Judged
    apart: Judged | None

    schema: ClassVar[str] = "specmargin.validate-speedups/1"

    @property
    def verdict(self) -> str:
        ours = next(line for line in self.lines if line.group == "all rows")
        return f"{ours.rows} rows: median error {ours.median_error:.1%}, bias {ours.bias:+.1%}"

    @property
    def token_errors(self) -> dict[str, SpeedError]:
        """Of tokens per second, plain and with speculation, where rows have them; those judged apart are not in it."""
        from specmargin.validation.token_speeds import errors_by_kind, speeds_of

        return errors_by_kind(speeds_of(self.report.predicted))

    def table(self) -> list[dict[str, Any]]:
        """One row per measurement that could be predicted; those that are judged apart at the end."""
        from specmargin.validation.calls import called

        return [
            {
                "id": row.point.id,
                "source": row.point.source,
                "measured": row.point.speedup,
                "predicted": row.speedup,
                "speedup_low": low,
                "speedup_high": high,
                "call": str(called(row, low)),
                "datasheet": row.datasheet_speedup,
                "prices": row.prices,
                "engine_time": row.pricer.scenario.engine_time.source.detail.partition(";")[0],
                "round": row.round_speedup,
                "closed_loop": None if row.loop is None else asdict(row.loop),
                "apart": judged is self.apart,
            }
            for judged in (self.judged, self.apart)
            if judged is not None
            for row, low, high in zip(judged.rows, judged.ranges.low.tolist(), judged.ranges.high.tolist(), strict=True)
        ]

    def values(self) -> dict[str, Any]:
        from specmargin.validation.calls import grows_by
        from specmargin.validation.speedups import source_median

        left_out = self.judged.left_out_ranges
        return {
            "lines": [_finite(asdict(line)) for line in self.lines],
            "groups": [_group_values(group) for group in self.judged.groups],
            "apart": None if self.apart is None else _group_values(self.apart.groups[0]),
            "rows": self.table(),
            "losses": [
                {"id": row.point.id, "measured": row.point.speedup, "predicted": row.speedup, "call": str(call)}
                | {"grows_by": grows_by(row)}
                for judged in (self.judged, self.apart)
                if judged is not None
                for row, call in judged.losses
            ],
            "tokens_per_second": {what: asdict(error) for what, error in self.token_errors.items()},
            "source_median_error": source_median(self.report),
            "range_coverage": float(self.judged.ranges.inside.mean()),
            "range_coverage_left_out": None if left_out is None else float(left_out.inside.mean()),
            "not_predicted": self.report.refused,
        }

    def blocks(self) -> Iterator[Block]:
        yield _everything(self.lines)
        yield GAP
        yield from _by_group(self.judged.groups, self.apart)
        yield from _token_speeds(self.token_errors)
        yield _loops(self.report)
        yield from _losses([*self.judged.losses, *(self.apart.losses if self.apart else ())])
        for reason, ids in self.report.refused_by_reason.items():
            yield dim(f"not predicted: {_listed(ids)}: {reason}")
        yield GAP
        yield _coverage(self.judged)
        yield _calls(self.judged.groups[0])

    def chart(self) -> Chart:
        from specmargin.show.figures.validation import speedups_figure

        return speedups_figure(self.report).chart()


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


def _group_values(group: GroupLine) -> dict[str, Any]:
    values = asdict(group)
    calls: dict[str, Any] = values.pop("calls")
    return values | calls


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


def _by_group(groups: Sequence[GroupLine], apart: Judged | None) -> Iterator[Block]:
    lines = [*groups, *([replace(apart.groups[0], group="apart")] if apart else [])]
    yield Table(
        title="Median error (bias) by group",
        columns=[*left("group"), *right("rows", "specmargin", "datasheet", "range holds", "losses called")],
        rows=[group_cells(line) for line in lines],
    )
    if any(line.behind_datasheet for line in lines):
        yield dim("*: behind the datasheet, with ten rows or more")


def group_cells(line: GroupLine) -> list[str]:
    calls = line.calls
    return [
        line.group,
        str(line.rows),
        f"{'* ' if line.behind_datasheet else ''}{line.median_error:.1%} ({line.bias:+.0%})",
        f"{line.datasheet_median_error:.1%}",
        f"{line.range_coverage:.0%}",
        f"{calls.losses_called} of {calls.losses}" if calls.losses else "",
    ]


def _token_speeds(errors: dict[str, SpeedError]) -> Iterator[Line]:
    for what, error in errors.items():
        yield dim(
            f"tokens per second, {what}, of {error.rows} rows at batch 1: median error {error.median_error:.1%}, bias "
            f"{error.bias:+.1%} (datasheet {error.datasheet_median_error:.1%})"
        )


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
        shortened = [row.loop.shortened for row in report.predicted if row.loop is not None and row.loop.shortened]
        text += f"; {len(shortened)} loops are shortened, the first to {shortened[0]}" if shortened else ""
    return dim(text)


def _losses(lost: Sequence[tuple[PredictedPoint, Call]]) -> Iterator[Block]:
    from specmargin.validation.calls import grows_by

    if not lost:
        return
    yield GAP
    yield Table(
        title="Rows where speculation lost, or was predicted to",
        columns=[
            *left("row", "source", "model"),
            *right("batch", "depth", "measured", "predicted"),
            *left("called", "grows by"),
        ],
        rows=[
            [
                row.point.id,
                row.point.source,
                Path(row.point.model).name,
                str(row.point.batch),
                str(row.point.depth),
                f"{row.point.speedup:.2f}×",
                f"{row.speedup:.2f}×",
                str(call),
                grows_by(row, most=1),
            ]
            for row, call in lost[:_SHOWN_ROWS]
        ],
    )
    more = f"; and {len(lost) - _SHOWN_ROWS} more (--json lists all)" if len(lost) > _SHOWN_ROWS else ""
    yield dim(f"grows by: what the round most exceeds a plain step by, of a plain step{more}")


def _coverage(judged: Judged) -> Line:
    sure, left_out = judged.ranges, judged.left_out_ranges
    text = (
        f"80% range, from each row's own prices: holds {sure.inside.mean():.0%} of the rows, median of high over low "
        f"{sure.median_width:.2f}"
    )
    if left_out is not None:
        text += (
            f"; with the errors of prices from the other sources alone: {left_out.inside.mean():.0%}, "
            f"{left_out.median_width:.2f}"
        )
    return dim(text)


def _calls(everything: GroupLine) -> Line:
    calls = everything.calls
    return dim(
        f"losses: {calls.losses_called} of {calls.losses} called, {calls.losses_uncertain} more uncertain (the range "
        f"spans 1); gains: {calls.gains_called_losses} of {calls.gains} called losses, {calls.gains_uncertain} "
        "uncertain"
    )
