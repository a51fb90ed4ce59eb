"""Published speed-ups that are judged together: a file, all files, or the rows of one box, and their cells."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specmargin.validation.calls import Call, GroupLine, Judged, grows_by, judge_rows
from specmargin.validation.speedup_ranges import Ranges
from specmargin.validation.speedups import PredictedPoint, SpeedupReport
from specmargin.verbs import validate_speedups

ONE_BOX_SET = "one box"


@dataclass(frozen=True, kw_only=True)
class RowSet:
    name: str
    report: SpeedupReport
    judged: Judged

    @classmethod
    def of(cls, name: str, report: SpeedupReport) -> RowSet:
        return cls(name=name, report=report, judged=judge_rows(report.predicted))

    @classmethod
    def of_reports(cls, names: Sequence[str], reports: Sequence[SpeedupReport], apart: Collection[str]) -> list[RowSet]:
        """One per report, without the sources `apart`; then all of them together; then those sources."""
        parts = [report.divided(apart) for report in reports]
        sets = [cls.of(name, main) for name, (main, _) in zip(names, parts, strict=True) if main.predicted]
        if len(sets) > 1:
            sets.append(cls.of(" and ".join(names), _together([main for main, _ in parts])))
        one_box = _together([rest for _, rest in parts])
        return [*sets, cls.of(ONE_BOX_SET, one_box)] if one_box.predicted else sets


def _together(reports: Sequence[SpeedupReport]) -> SpeedupReport:
    return SpeedupReport(
        predicted=tuple(row for report in reports for row in report.predicted),
        refused={name: reason for report in reports for name, reason in report.refused.items()},
    )


# --- cells ---


def group_headings() -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ("group",), (
        "rows",
        "specmargin",
        "datasheet",
        "range holds",
        "losses called",
        "uncertain",
        "gains called losses",
    )


def group_cells(line: GroupLine) -> list[str]:
    """Those of `specmargin validate speedups`, and two more."""
    calls = line.calls
    return [
        *validate_speedups.group_cells(line),
        str(calls.losses_uncertain) if calls.losses else "",
        f"{calls.gains_called_losses} of {calls.gains}" if calls.gains else "",
    ]


def loss_headings() -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ("row", "source", "model", "GPU"), (
        "batch",
        "depth",
        "measured",
        "predicted",
        "called",
        "round exceeds plain by",
    )


def loss_cells(row: PredictedPoint, call: Call) -> list[str]:
    point = row.point
    gpu = Path(point.gpu).stem if "/" in point.gpu else point.gpu
    where = gpu if point.gpus == 1 else f"{point.gpus} × {gpu}"
    gains = (f"{point.speedup:.2f}×", f"{row.speedup:.2f}×")
    return [
        point.id,
        point.source,
        Path(point.model).name,
        where,
        str(point.batch),
        str(point.depth),
        *gains,
        str(call),
        grows_by(row),
    ]


def loss_text(row: PredictedPoint, call: Call) -> str:
    """The same in a line."""
    identity, source, model, where, batch, depth, measured, predicted, said, grown = loss_cells(row, call)
    scenario = f"{identity} {source} {model} on {where}, batch {batch}, depth {depth}"
    return f"{scenario}: {measured} measured, {predicted} predicted ({said}); {grown}"


def calls_text(rows: RowSet) -> Iterator[str]:
    """Ranges and calls, a sentence each."""
    judged, calls = rows.judged, rows.judged.groups[0].calls
    yield f"80% range from each row's own prices {_held(judged.ranges)}"
    if judged.left_out_ranges is not None:
        yield f"with the errors of prices from the other sources alone it {_held(judged.left_out_ranges)}"
    if calls.losses:
        yield (
            f"losses: {calls.losses_called} of {calls.losses} called ({calls.losses_called / calls.losses:.0%}), "
            f"{calls.losses_uncertain} more uncertain"
        )
    if calls.gains:
        yield (
            f"gains: {calls.gains_called_losses} of {calls.gains} called losses "
            f"({calls.gains_called_losses / calls.gains:.0%}), {calls.gains_uncertain} uncertain"
        )


def _held(ranges: Ranges) -> str:
    return f"holds {ranges.inside.mean():.0%} of the rows (median of high over low {ranges.median_width:.2f})"
