"""What a client and the engine's log show of a cell: the same figures of a recorded server and of a simulated one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specmargin.errors import InputError
from specmargin.simulator.results import Slo
from specmargin.step import BoolArray, FloatArray, IntArray

PERCENTILES = (50, 90, 99)
LATENCIES = tuple(f"{name} p{percent}" for name in ("TTFT", "TPOT") for percent in PERCENTILES)  # in milliseconds
FIGURES = ("tok/s", *LATENCIES, "waiting", "decoding", "goodput")
_KEYS = ("cell", "model", "contestant", "trace", "limits", "arguments", "cache", "ramp_seconds", "window_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Seconds since the start of the trace; NaN: not before the end."""

    sent: FloatArray
    first: FloatArray
    last: FloatArray  # NaN: not complete
    tokens: IntArray  # asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """In order; `seconds` are from the end of the step before, or from its own begin if the engine was idle."""

    ended: FloatArray
    seconds: FloatArray
    depth: IntArray  # of the drafts that it makes
    decoding: IntArray
    waiting: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    requests: Requests
    steps: Steps
    tokens: float  # that came in the window


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`given`: the file, as `lab/gpu/served.py` or `lab/live/served.py` wrote it."""

    folder: Path
    given: Mapping[str, Any]
    played: Played

    @property
    def name(self) -> str:
        return str(self.given["cell"])

    @property
    def window(self) -> tuple[float, float]:
        ramp = float(self.given["ramp_seconds"])
        return ramp, ramp + float(self.given["window_seconds"])


def read_cells(folder: Path) -> list[Cell]:
    paths = sorted(folder.glob("*.json.gz"))
    if not paths:
        raise InputError(f"{folder}: has no cells (NAME.json.gz); `python -m lab.gpu.served play` writes them")
    return [read_cell(path) for path in paths]


def read_cell(path: Path) -> Cell:
    try:
        given = json.loads(gzip.decompress(path.read_bytes()))
        missing = [key for key in (*_KEYS, "requests", "steps", "tokens_by_second") if key not in given]
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise InputError(f"{path}: is not a recorded cell ({error})") from None
    if missing:
        raise InputError(f"{path}: has no {missing[0]!r}; record the cell again with `python -m lab.gpu.served play`")
    return Cell(folder=path.parent, given=given, played=_played(given))


def _played(given: Mapping[str, Any]) -> Played:
    requests, steps = given["requests"], given["steps"]
    complete = np.array(requests["complete"], dtype=np.bool_)
    begun = np.cumsum(np.array(steps["begun_us"], dtype=np.float64)) * 1e-6
    ended = begun + np.array(steps["took_us"], dtype=np.float64) * 1e-6
    before = np.concatenate([[0.0], ended[:-1]])
    return Played(
        requests=Requests(
            sent=_seconds(requests["sent_seconds"]),
            first=_seconds(requests["first_seconds"]),
            last=np.where(complete, _seconds(requests["last_seconds"]), np.nan),
            tokens=np.array(requests["output_tokens"], dtype=np.int64),
        ),
        steps=Steps(
            ended=ended,
            seconds=ended - np.maximum(before, begun),
            depth=np.array(steps["depth"], dtype=np.int64),
            decoding=np.array(steps["decoding"], dtype=np.int64),
            waiting=np.array(steps["waiting"], dtype=np.int64),
        ),
        tokens=float(sum(given["tokens_by_second"][int(given["ramp_seconds"]) :])),
    )


def _seconds(values: Sequence[float | None]) -> FloatArray:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


# --- figures ---


def figures(played: Played, window: tuple[float, float], slo: Slo) -> dict[str, float]:
    """Of the window: TTFT of requests sent in it, TPOT of those that complete in it, means over its busy time."""
    begin, end = window
    requests, steps = played.requests, played.steps
    ttft, tpot = requests.first - requests.sent, _tpot(requests)
    sent = (requests.sent >= begin) & (requests.sent < end)
    done = (requests.last >= begin) & (requests.last <= end)
    within = (steps.ended >= begin) & (steps.ended <= end)
    seconds = steps.seconds[within]
    busy = max(float(seconds.sum()), 1e-12)
    found = {"tok/s": played.tokens / (end - begin)}
    found |= _percentiles("TTFT", ttft[sent & (requests.first <= end)]) | _percentiles("TPOT", tpot[done])
    for name, values in (("waiting", steps.waiting), ("decoding", steps.decoding)):
        found[name] = float((values[within] * seconds).sum() / busy)
    return found | {"goodput": float(requests.tokens[done & _met(ttft, tpot, slo)].sum() / (end - begin))}


def _tpot(requests: Requests) -> FloatArray:
    gaps = np.maximum(requests.tokens - 1, 1)
    return np.where(requests.tokens > 1, (requests.last - requests.first) / gaps, np.nan)


def _met(ttft: FloatArray, tpot: FloatArray, slo: Slo) -> BoolArray:
    within = [
        np.ones(ttft.shape, dtype=np.bool_) if limit is None else ~(times > limit)
        for times, limit in ((ttft, slo.ttft_seconds), (tpot, slo.tpot_seconds))
    ]
    return np.asarray(within[0] & within[1])


def _percentiles(name: str, seconds: FloatArray) -> dict[str, float]:
    known = seconds[np.isfinite(seconds)]
    return {f"{name} p{q}": 1e3 * float(np.percentile(known, q)) if known.size else np.nan for q in PERCENTILES}


def depth_shares(played: Played, window: tuple[float, float]) -> dict[int, float]:
    """Share of the busy time by the depth of the drafts that a step makes."""
    steps = played.steps
    within = (steps.ended >= window[0]) & (steps.ended <= window[1])
    busy = max(float(steps.seconds[within].sum()), 1e-12)
    return {
        int(depth): float(steps.seconds[within & (steps.depth == depth)].sum() / busy)
        for depth in np.unique(steps.depth[within])
    }
