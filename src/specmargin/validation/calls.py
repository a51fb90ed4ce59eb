"""Gains and losses by group of rows: losses that were called, or only as uncertain, and gains called losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from specmargin.validation.speedup_ranges import Ranges, left_out_ranges, own_ranges
from specmargin.validation.speedups import PredictedPoint, grouped, median_errors

_ENOUGH = 10  # rows from which on a group must not be behind the datasheet


class Call(StrEnum):
    """What a prediction says; a gain whose range holds a loss is uncertain."""

    GAIN = "gain"
    UNCERTAIN = "uncertain"
    LOSS = "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Of one group of rows."""

    losses: int
    losses_called: int
    losses_uncertain: int  # predicted to gain, with a range that holds a loss
    gains: int
    gains_called_losses: int
    gains_uncertain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """One group of rows: errors beside the datasheet's, how many its ranges hold, and its calls."""

    group: str
    rows: int
    median_error: float
    bias: float
    datasheet_median_error: float
    behind_datasheet: bool  # with ten rows or more
    range_coverage: float  # of the rows' own ranges
    calls: Calls


def called(row: PredictedPoint, low: float) -> Call:
    if row.speedup < 1.0:
        return Call.LOSS
    return Call.UNCERTAIN if low < 1.0 else Call.GAIN


def count_calls(rows: Sequence[PredictedPoint], sure: Ranges) -> Calls:
    pairs = [(row.point.speedup < 1.0, called(row, low)) for row, low in zip(rows, sure.low.tolist(), strict=True)]
    return Calls(
        losses=sum(lost for lost, _ in pairs),
        losses_called=pairs.count((True, Call.LOSS)),
        losses_uncertain=pairs.count((True, Call.UNCERTAIN)),
        gains=sum(not lost for lost, _ in pairs),
        gains_called_losses=pairs.count((False, Call.LOSS)),
        gains_uncertain=pairs.count((False, Call.UNCERTAIN)),
    )


def group_lines(rows: Sequence[PredictedPoint], sure: Ranges) -> list[GroupLine]:
    return [_group_line(group, [rows[i] for i in members], _part(sure, members)) for group, members in grouped(rows)]


def _group_line(group: str, rows: Sequence[PredictedPoint], sure: Ranges) -> GroupLine:
    ours, bias = median_errors([row.speedup for row in rows], rows)
    datasheet, _ = median_errors([row.datasheet_speedup for row in rows], rows)
    return GroupLine(
        group=group,
        rows=len(rows),
        median_error=ours,
        bias=bias,
        datasheet_median_error=datasheet,
        behind_datasheet=len(rows) >= _ENOUGH and ours > datasheet,
        range_coverage=float(sure.inside.mean()),
        calls=count_calls(rows, sure),
    )


def _part(sure: Ranges, members: Sequence[int]) -> Ranges:
    at = np.asarray(members)
    return Ranges(low=sure.low[at], high=sure.high[at], inside=sure.inside[at])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Rows that are judged together."""

    rows: tuple[PredictedPoint, ...]
    ranges: Ranges  # from each row's own prices
    left_out_ranges: Ranges | None  # with nothing from the row's source; None where all rows are of one
    groups: tuple[GroupLine, ...]  # all rows first

    @property
    def losses(self) -> list[tuple[PredictedPoint, Call]]:
        """Rows where speculation lost, or was predicted to lose."""
        pairs = [(row, called(row, low)) for row, low in zip(self.rows, self.ranges.low.tolist(), strict=True)]
        return [(row, call) for row, call in pairs if row.point.speedup < 1.0 or call is Call.LOSS]


def judge_rows(rows: Sequence[PredictedPoint]) -> Judged:
    sure = own_ranges(rows)
    return Judged(
        rows=tuple(rows),
        ranges=sure,
        left_out_ranges=left_out_ranges(rows),
        groups=tuple(group_lines(rows, sure)),
    )


def grows_by(row: PredictedPoint, most: int = 2) -> str:
    """What makes a round longer than a plain step: `routed experts 61%, drafting 30%` of a plain step."""
    if row.is_prefill:
        return "prompts"
    grown = [(name, share) for name, share in row.growth.items() if share >= 0.005][:most]
    return ", ".join(f"{name} +{share:.0%}" for name, share in grown)
