"""Errors of every price source on served rows: median and 90th percentile of the absolute error, by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.validation.served.engine_time import left_out_seconds
from lab.validation.served.peer import Estimate, stratified
from lab.validation.served.rows import ServedRow
from lab.validation.served.tpot import Predictions, Wrapper, predict
from specmargin.errors import InputError
from specmargin.step import BoolArray, FloatArray

SOURCES = ("tables", "laws", "datasheet")
PEER = "aiconfigurator"
_CONFLICT = 1.25  # ratio between measurements of one configuration above which no prediction fits both

Track = Callable[[str], Wrapper]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLine:
    group: str
    rows: int
    source: str
    median_error: float
    p90_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedReport:
    """Every row that all price sources can price, with their predictions."""

    rows: tuple[ServedRow, ...]
    measured_seconds: FloatArray
    predicted_seconds: Mapping[str, FloatArray]  # by source, in the order of `rows`
    refused: Mapping[str, int]  # number of rows by reason
    moe_rows: int  # including the refused ones

    def error(self, source: str) -> FloatArray:
        return np.asarray(np.abs(self.predicted_seconds[source] / self.measured_seconds - 1.0))

    def lines(self) -> list[ErrorLine]:
        return [line for name, chosen in self._groups() for line in self._group_lines(name, chosen)]

    def _groups(self) -> Iterator[tuple[str, BoolArray]]:
        moe = np.array([row.is_moe for row in self.rows])
        yield "MoE", moe
        yield "MoE, no conflicting rows", moe & ~self._conflicting()
        yield "dense", ~moe
        for kind, name_of in (("family", _family), ("GPU", _device), ("engine", _engine)):
            names = np.array([name_of(row) for row in self.rows])
            for name in sorted(set(names[moe])):
                yield f"{kind} {name}", moe & (names == name)

    def _group_lines(self, name: str, chosen: BoolArray) -> list[ErrorLine]:
        if not chosen.any():
            return []
        return [error_line(name, source, self.error(source)[chosen]) for source in self.predicted_seconds]

    def _conflicting(self) -> BoolArray:
        """Rows whose configuration was measured more than once, with contradicting results."""
        by_configuration: dict[object, list[float]] = {}
        for row in self.rows:
            by_configuration.setdefault(row.configuration, []).append(row.tpot_seconds)
        spread = {key: max(seconds) / min(seconds) for key, seconds in by_configuration.items()}
        return np.array([spread[row.configuration] > _CONFLICT for row in self.rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """The same rows priced by Specmargin and by the peer, and how many of the sample each could not price."""

    lines: tuple[ErrorLine, ...]
    sampled: int
    refused_by_us: int
    refused_by_peer: int


def served_report(rows: Sequence[ServedRow], track: Track) -> ServedReport:
    """Engine time is fitted, so every row is predicted by a fit without the rows of its model on its GPU."""
    by_source = {source: predict(rows, source, progress=track(source)) for source in SOURCES}
    priced = by_source[SOURCES[0]]
    if any(predictions.refused != priced.refused for predictions in by_source.values()):
        raise InputError("the price sources refuse different rows, so they cannot be compared row by row")
    return ServedReport(
        rows=tuple(prediction.row for prediction in priced.rows),
        measured_seconds=np.array([prediction.row.tpot_seconds for prediction in priced.rows]),
        predicted_seconds={source: _seconds(source, predictions) for source, predictions in by_source.items()},
        refused=priced.refused,
        moe_rows=sum(row.is_moe for row in rows),
    )


def _seconds(source: str, predictions: Predictions) -> FloatArray:
    """The datasheet roofline is used without engine time, as is common: nothing of it is fitted."""
    if source == "datasheet":
        return np.array([prediction.kernel_seconds for prediction in predictions.rows])
    return left_out_seconds(predictions.rows)


def peer_report(
    report: ServedReport, rows: Sequence[ServedRow], estimate: Estimate, *, wanted: int, seed: int, track: Track
) -> PeerReport:
    """MoE rows, drawn in turn from every family, GPU and engine, until `wanted` of them are priced by both."""
    index_by_identity = {row.identity: index for index, row in enumerate(report.rows)}
    candidates = stratified([row for row in rows if row.is_moe], seed=seed)
    chosen: list[int] = []
    peer_seconds: list[float] = []
    sampled = refused_by_us = refused_by_peer = 0
    for row in track(PEER)(candidates):
        seconds = estimate(row)
        sampled += 1
        refused_by_us += row.identity not in index_by_identity
        refused_by_peer += seconds is None
        if seconds is not None and row.identity in index_by_identity:
            chosen.append(index_by_identity[row.identity])
            peer_seconds.append(seconds)
        if len(chosen) == wanted:
            break
    return PeerReport(
        lines=tuple(_peer_lines(report, np.array(chosen, dtype=np.int64), np.array(peer_seconds))),
        sampled=sampled,
        refused_by_us=refused_by_us,
        refused_by_peer=refused_by_peer,
    )


def _peer_lines(report: ServedReport, chosen: np.ndarray, peer_seconds: FloatArray) -> Iterator[ErrorLine]:
    errors = {source: report.error(source)[chosen] for source in report.predicted_seconds}
    errors[PEER] = np.abs(peer_seconds / report.measured_seconds[chosen] - 1.0)
    engines = np.array([report.rows[index].engine for index in chosen])
    for source, error in errors.items():
        yield error_line("sample", source, error)
    for engine in sorted(set(engines)):
        for source, error in errors.items():
            yield error_line(f"sample, engine {engine}", source, error[engines == engine])


def error_line(group: str, source: str, errors: FloatArray) -> ErrorLine:
    return ErrorLine(
        group=group,
        rows=int(errors.size),
        source=source,
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
    )


def _family(row: ServedRow) -> str:
    return row.family


def _device(row: ServedRow) -> str:
    return row.device


def _engine(row: ServedRow) -> str:
    return row.engine
