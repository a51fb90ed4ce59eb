"""llama.cpp's prices against published `llama-bench` tables: constants fitted per backend, error on left-out sources.

    python -m lab.validation.llamacpp            # the error of every source when its rows were not fitted
    python -m lab.validation.llamacpp --write    # also fits to all and writes catalog/llamacpp_kernels.json

Rows are plain decoding and short prompts without speculation (lab/data/published/llama-bench). Fitted are four
constants of a backend: the share of bandwidth that kernels sustain, that of attention, the time of a launch, and the
work of a position in a matrix-vector kernel. They start from neutral guesses that are the same for all backends, so
that a backend with one source is not judged by constants which that source gave. Rows of one position on CUDA from
builds before November 2025 are shown, not fitted: they lack fusions that the launches are counted with.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from lab import CATALOG, PUBLISHED
from lab.terminal import console, note, parser, table
from lab.validation.accuracy import Accuracy
from lab.validation.one_box import one_box
from specmargin.answers.request_schema import ScenarioRequest, read_request
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.llamacpp import kernels_of, llamacpp_prices
from specmargin.decisions.pricer import Pricer
from specmargin.prices.accuracy import PriceErrors
from specmargin.prices.llamacpp.backends import Backend, Kernels
from specmargin.prices.model import PriceModel
from specmargin.prices.roofline import Roofline
from specmargin.prices.work import Component, Work
from specmargin.step import FloatArray, Step
from specmargin.validation.speedup_ranges import general_errors, narrowest

POINTS = PUBLISHED / "llama-bench" / "points.csv"
TARGET = CATALOG / "llamacpp_kernels.json"
_LOGITS = (Component.LM_HEAD, Component.SAMPLING)
_HELD = 0.8

#: Fitted constants: a neutral guess, and how far from it they may be, as a logarithm.
_GUESSES = {
    "bandwidth_share": (0.85, 0.1),
    "attention_share": (0.6, 0.3),
    "kernel_seconds": (3e-6, 0.5),
    "column_work": (9.0, 0.4),
}
_ERROR = 0.12  # of one row, as a logarithm: what builds, drivers and clocks differ by


class Row(NamedTuple):
    source: str
    gpu: str
    backend: Backend
    model: str
    weights: str
    positions: int
    sequences: int
    context: float
    logits: bool
    fitted: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    row: Row
    left_out: float  # seconds, by constants that were fitted without the source
    datasheet: float

    @property
    def error(self) -> float:
        return self.left_out / self.row.seconds - 1.0

    @property
    def datasheet_error(self) -> float:
        return self.datasheet / self.row.seconds - 1.0


def rows() -> list[Row]:
    with POINTS.open(encoding="utf-8", newline="") as file:
        return [_row(entry) for entry in csv.DictReader(file)]


def _row(entry: Mapping[str, str]) -> Row:
    positions, sequences = int(entry["positions"]), int(entry["sequences"])
    return Row(
        source=entry["source"],
        gpu=entry["gpu"],
        backend=Backend(entry["backend"]),
        model=entry["model"],
        weights=entry["weights"],
        positions=positions,
        sequences=sequences,
        context=float(entry["context"]),
        logits=entry["logits"] == "1",
        fitted=entry["fitted"] == "1",
        seconds=positions * sequences / float(entry["tokens_per_second"]),
    )


def predictions() -> list[Predicted]:
    """Every row, by constants of its backend that were fitted to the other sources."""
    found = rows()
    constants = {
        (row.backend, row.source): fitted(row.backend, [other for other in found if other.source != row.source])
        for row in {(each.backend, each.source): each for each in found}.values()
    }
    return [
        Predicted(
            row=row,
            left_out=seconds(row, constants[row.backend, row.source]),
            datasheet=_seconds(row, Roofline(device=_pricer(row.gpu, row.model, row.weights).scenario.device)),
        )
        for row in found
    ]


def fitted(backend: Backend, found: Sequence[Row]) -> Kernels:
    """To these rows of the backend, each source as heavy as any other."""
    own = [row for row in found if row.backend is backend and row.fitted]
    start = kernels_of(backend)
    guesses: dict[str, Any] = {name: guess for name, (guess, _) in _GUESSES.items()}
    neutral = replace(start, **guesses)
    if not own:
        return neutral
    sizes: dict[str, int] = defaultdict(int)
    for row in own:
        sizes[row.source] += 1
    weights = np.array([1.0 / np.sqrt(sizes[row.source]) for row in own])
    widths = np.array([width for _, width in _GUESSES.values()])

    def misses(moved: FloatArray) -> FloatArray:
        kernels = _moved(neutral, moved)
        errors = np.array([np.log(seconds(row, kernels) / row.seconds) for row in own])
        return np.concatenate([weights * errors / _ERROR, moved / widths])

    moved = least_squares(misses, np.zeros(len(_GUESSES)), loss="soft_l1", diff_step=[1e-3], max_nfev=12).x
    return _moved(neutral, moved)


def _moved(kernels: Kernels, moved: FloatArray) -> Kernels:
    values = {name: guess * float(np.exp(by)) for (name, (guess, _)), by in zip(_GUESSES.items(), moved, strict=True)}
    kept: dict[str, Any] = values | {"bandwidth_share": min(values["bandwidth_share"], 1.0)}
    return replace(kernels, **kept)


def seconds(row: Row, kernels: Kernels) -> float:
    device = _pricer(row.gpu, row.model, row.weights).scenario.device
    return _seconds(row, llamacpp_prices(device, row.backend, kernels))


def _seconds(row: Row, model: PriceModel) -> float:
    return float(sum(float(np.sum(price.seconds)) for price in model.price(_works(row))))


@cache
def _works(row: Row) -> tuple[Work, ...]:
    """Without logits where the benchmark asked for none; a prompt has those of its last position."""
    pricer = _pricer(row.gpu, row.model, row.weights)
    works = pricer.works(_step(row.sequences, row.positions, row.context))
    kept = [work for work in works if work.component not in _LOGITS]
    if not row.logits:
        return tuple(kept)
    last = pricer.works(_step(row.sequences, 1, row.context))
    return (*kept, *(work for work in last if work.component in _LOGITS))


def _step(sequences: int, positions: int, context: float) -> Step:
    size = np.array([float(sequences)])
    return Step.uniform(batch=size, depth=np.array([positions - 1.0]), context=np.array([context]))


@cache
def _pricer(gpu: str, model: str, weights: str) -> Pricer:
    asked = {"model": model, "gpu": gpu, "weights": weights, "engine": "llamacpp", "drafter": "ngram"}
    return Pricer(scenario_of(read_request(ScenarioRequest, asked))[1])


# --- ratios: what decides about speculation ---


def ratio_errors(found: Sequence[Predicted]) -> dict[str, list[float]]:
    """By source, ln of predicted over measured growth of a step with its positions."""
    groups: dict[tuple[object, ...], list[Predicted]] = defaultdict(list)
    for each in found:
        row = each.row
        groups[row.source, row.gpu, row.backend, row.model, row.weights, row.context > 2048].append(each)
    errors: dict[str, list[float]] = defaultdict(list)
    for group in groups.values():
        first, *others = sorted(group, key=lambda each: each.row.positions)
        for other in others:
            if other.row.positions > first.row.positions:
                grown = other.left_out / first.left_out, other.row.seconds / first.row.seconds
                errors[first.row.source].append(float(np.log(grown[0] / grown[1])))
    return errors


def ratio_range(errors: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """The narrowest that holds 80% of ln(measured / predicted speed-up), every source as heavy as any other."""
    values = np.array([error for of_source in errors.values() for error in of_source])
    weight = np.array([1.0 / len(of_source) for of_source in errors.values() for _ in of_source])
    below, above = narrowest(np.maximum(-values, 0.0), np.maximum(values, 0.0), weight)
    return -below, above


def stated_range(ratios: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """What `plan` states: the wider of growth with positions on left-out sources and of published speed-ups, to which
    no price is fitted; a round has drafts and host time beside the kernels. And the same without each source.
    """
    bench = ratio_range(ratios)
    points = [row for row in one_box().speedups if row.point.engine == "llamacpp"]
    sources = {row.point.source for row in points}
    return {
        **_wider(bench, general_errors(points)),
        "source": f"{sum(map(len, ratios.values()))} steps of {len(ratios)} left-out sources of llama-bench tables, "
        f"{len(points)} published speed-ups of {len(sources)} sources (python -m lab.validation.llamacpp)",
        "without": {
            name: _wider(bench, general_errors([row for row in points if row.point.source != name]))
            for name in sorted(sources)
        },
    }


def _wider(bench: tuple[float, float], rounds: PriceErrors) -> dict[str, float]:
    return {"low": round(min(bench[0], rounds.low), 3), "high": round(max(bench[1], rounds.high), 3)}


# --- report ---


def lines(found: Sequence[Predicted]) -> Iterator[tuple[str, str, str, str, str, str]]:
    by_source: dict[tuple[Backend, str], list[Predicted]] = defaultdict(list)
    for each in found:
        by_source[each.row.backend, each.row.source].append(each)
    for (backend, source), group in sorted(by_source.items()):
        errors, datasheet = ([getattr(e, name) for e in group] for name in ("error", "datasheet_error"))
        yield (
            str(backend),
            source,
            str(len(group)),
            f"{np.median(np.abs(errors)):.0%}",
            f"{np.median(errors):+.0%}",
            f"{np.median(np.abs(datasheet)):.0%}",
        )


def write(found: Sequence[Predicted]) -> None:
    document = json.loads(TARGET.read_text())
    document["errors"] = {"ratios": stated_range(ratio_errors(found))}
    for backend in Backend:
        of_backend = [each for each in found if each.row.backend is backend]
        spread = float(np.quantile([abs(np.log1p(each.error)) for each in of_backend], _HELD))
        kernels = replace(fitted(backend, rows()), spread=round(spread, 3))
        document["backends"][str(backend)] = {
            name: float(f"{value:.3g}") if isinstance(value, float) else value
            for name, value in asdict(kernels).items()
        }
    TARGET.write_text(json.dumps(document, indent=1) + "\n")


def _rounded(value: float | int) -> float | int:
    return float(f"{value:.3g}") if isinstance(value, float) else value


def report() -> tuple[Accuracy, ...]:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true")
    chosen = options.parse_args()
    found, out = predictions(), console()
    shown = table(
        "Steps of llama.cpp, predicted without their source",
        ["backend", "source left out"],
        ["rows", "median error", "bias", "datasheet"],
    )
    for line in lines(found):
        shown.add_row(*line)
    out.print(shown)
    errors = [abs(each.error) for each in found]
    datasheet = [abs(each.datasheet_error) for each in found]
    ratios = np.abs([error for of_source in ratio_errors(found).values() for error in of_source])
    note(out, f"all {len(found)} rows: median error {np.median(errors):.1%}, datasheet {np.median(datasheet):.1%}")
    note(out, f"growth with positions, {len(ratios)} steps: median error {np.median(ratios):.1%}")
    if chosen.write:
        write(found)
        note(out, f"written: {TARGET.name}")
    return ()


if __name__ == "__main__":
    report()
