"""Whole verify steps of llama.cpp on processors against the catalog's laws, from a processor's description alone.

    python -m lab.validation.cpu_steps

A folder holds config.json, processor.toml, and steps.csv or what `specmargin measure llamacpp` wrote (q8_0.json).
Beside it the simplest rival: the bytes of a step over the measured bandwidth.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.hardware.processor import Processor
from specmargin.step import FloatArray, Step

_MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
FOLDERS = ("llamacpp-cpu", "llamacpp-cpu-one-core")
_PADDED = 256  # tokens: llama.cpp's cache is read up to a multiple of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Measured steps of one quantisation."""

    batch: FloatArray
    depth: FloatArray
    context: FloatArray
    seconds: FloatArray


def measured_steps(folder: Path) -> dict[str, Steps]:
    """By quantisation."""
    if (folder / "steps.csv").exists():
        with (folder / "steps.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        names = dict.fromkeys(row["weights"] for row in rows)
        return {name: _of_csv([row for row in rows if row["weights"] == name]) for name in names}
    return {path.stem: _of_price_file(path) for path in sorted(folder.glob("q*.json"))}


def _of_csv(rows: list[dict[str, str]]) -> Steps:
    positions, seconds = (np.array([float(row[name]) for row in rows]) for name in ("positions", "milliseconds"))
    return Steps(
        batch=np.ones(len(rows)), depth=positions - 1.0, context=np.full(len(rows), 128.0), seconds=seconds / 1e3
    )


def _of_price_file(path: Path) -> Steps:
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    batch, depth, context, seconds = (
        np.array([float(row[name]) for row in rows]) for name in ("batch", "depth", "context", "seconds")
    )
    return Steps(batch=batch, depth=depth, context=context, seconds=seconds)


def predicted(folder: Path, weights: str, steps: Steps) -> tuple[FloatArray, FloatArray]:
    """Seconds by the laws, and by bytes alone."""
    request = ScenarioRequest(
        model=str(folder / "config.json"),
        gpu=str(folder / "processor.toml"),
        weights=weights,
        drafter="ngram",
        routing="uniform",
        context=_PADDED,
    )
    scenario = scenario_of(request)[1]
    processor: Processor | None = scenario.device.processor
    if processor is None or processor.measured_bytes_per_second is None:
        raise SystemExit(f"{folder / 'processor.toml'}: give measured_bytes_per_second")
    context = np.ceil((steps.context + steps.depth + 1.0) / _PADDED) * _PADDED - 1.0
    price = Pricer(scenario).verify(Step.uniform(batch=steps.batch, depth=steps.depth, context=context))
    read = np.asarray(sum((line.bytes for line in price.components), start=np.zeros(context.shape)))
    return price.total_seconds, read / processor.measured_bytes_per_second


def main() -> None:
    print("measured               weights  steps  median error  worst  bias  bytes alone: median error")
    for name in FOLDERS:
        folder = _MEASUREMENTS / name
        for weights, steps in measured_steps(folder).items():
            laws, rival = (each / steps.seconds - 1.0 for each in predicted(folder, weights, steps))
            last = f"{np.median(np.abs(laws)):>12.0%} {np.abs(laws).max():>6.0%} {laws.mean():>+5.0%}"
            print(f"{name:<22} {weights:<8} {laws.size:>5} {last} {np.median(np.abs(rival)):>18.0%}")


if __name__ == "__main__":
    main()
