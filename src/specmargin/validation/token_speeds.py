"""Tokens per second that others measured, without speculation and with it, against predictions and the datasheet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.errors import MissingExtraError, SpecmarginError
from specmargin.validation.points_schema import PlainPoint, Setup
from specmargin.validation.speedups import PredictedPoint, Pricers, pricer_of

PLAIN, SPECULATIVE = "plain", "speculative"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpeed:
    """Tokens per second of one sequence."""

    point: Setup
    pricer: Pricer
    what: str  # `PLAIN` or `SPECULATIVE`
    measured: float
    predicted: float
    datasheet: float  # a baseline: the bare datasheet, no engine time


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedError:
    rows: int
    median_error: float
    bias: float  # median of predicted over measured, less 1
    datasheet_median_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainReport:
    predicted: tuple[TokenSpeed, ...]
    refused: dict[str, str]  # by id: why the row could not be asked


def speeds_of(rows: Sequence[PredictedPoint]) -> list[TokenSpeed]:
    """Both figures of each row whose figures are tokens per second of one sequence."""
    return [speed for row in rows if row.point.counts_tokens for speed in _both(row)]


def _both(row: PredictedPoint) -> list[TokenSpeed]:
    point, plain, datasheet = row.point, 1.0 / row.no_spec_seconds, 1.0 / row.datasheet_seconds
    figures = (
        (PLAIN, point.plain, plain, datasheet),
        (SPECULATIVE, point.speculative, plain * row.speedup, datasheet * row.datasheet_speedup),
    )
    return [
        TokenSpeed(
            point=point, pricer=row.pricer, what=what, measured=measured, predicted=predicted, datasheet=baseline
        )
        for what, measured, predicted, baseline in figures
        if measured is not None
    ]


def predict_plain(points: Sequence[PlainPoint], folder: Path, advance: Callable[[int], object] = int) -> PlainReport:
    """Every row of plain decoding that can be asked. Models and devices are names, or paths relative to `folder`."""
    predicted, refused = [], {}
    pricers: Pricers = {}
    for point in points:
        try:
            predicted.append(_plain(point, folder, pricers))
        except MissingExtraError:
            raise
        except SpecmarginError as error:
            refused[point.id] = str(error)
        advance(1)
    return PlainReport(predicted=tuple(predicted), refused=refused)


def _plain(point: PlainPoint, folder: Path, pricers: Pricers) -> TokenSpeed:
    pricer = pricer_of(point, folder, pricers, prices=None)
    datasheet = pricer_of(point, folder, pricers, prices="datasheet")
    return TokenSpeed(
        point=point,
        pricer=pricer,
        what=PLAIN,
        measured=point.plain,
        predicted=_tokens_per_second(pricer),
        datasheet=_tokens_per_second(datasheet),
    )


def _tokens_per_second(pricer: Pricer) -> float:
    return 1.0 / float(pricer.grid([1], 0).no_spec_seconds[0])


def speed_error(speeds: Sequence[TokenSpeed]) -> SpeedError:
    measured = np.array([speed.measured for speed in speeds])
    error = np.array([speed.predicted for speed in speeds]) / measured - 1.0
    datasheet = np.array([speed.datasheet for speed in speeds]) / measured - 1.0
    return SpeedError(
        rows=len(speeds),
        median_error=float(np.median(np.abs(error))),
        bias=float(np.median(error)),
        datasheet_median_error=float(np.median(np.abs(datasheet))),
    )


def errors_by_kind(speeds: Sequence[TokenSpeed]) -> dict[str, SpeedError]:
    """`PLAIN` and `SPECULATIVE`, as far as there are any."""
    kinds = {what: [speed for speed in speeds if speed.what == what] for what in (PLAIN, SPECULATIVE)}
    return {what: speed_error(of_kind) for what, of_kind in kinds.items() if of_kind}
