"""Plain steps of one model in several precisions of its weights, measured on an H200, against their prices.

    python -m lab.validation.precisions

Nothing is fitted to these steps. A further run is an entry in `vllm-0.32-h200-precisions.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from lab import DATA
from lab.terminal import console, note, run, table
from lab.validation.accuracy import Accuracy, median_and
from specmargin.answers.scenarios import scenarios_of
from specmargin.decisions.pricer import Pricer
from specmargin.step import FloatArray, Step
from specmargin.verbs.price import PriceRequest

FILE = DATA / "measurements" / "vllm-0.32-h200-precisions.json"
SOURCES = ("tables", "laws", "datasheet")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRun:
    """Measured steps in one precision: seconds by batch, each at its mean context."""

    name: str
    weights: str
    batch: FloatArray
    context: FloatArray
    seconds: FloatArray

    def errors(self, source: str) -> FloatArray:
        """Predicted over measured time, less one."""
        return np.asarray(predicted_seconds(self, source) / self.seconds - 1.0)


def measured_runs() -> Iterator[PrecisionRun]:
    values: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    for entry in values["engines"]:
        batch, context, milliseconds = (
            np.array([row[name] for row in entry["rows"]], dtype=np.float64)
            for name in ("batch", "context", "round_ms")
        )
        yield PrecisionRun(
            name=f"{entry['weights']}: {entry['kernels']}",
            weights=entry["weights"],
            batch=batch,
            context=context,
            seconds=milliseconds * 1e-3,
        )


def predicted_seconds(run: PrecisionRun, source: str) -> FloatArray:
    """As `specmargin price` prices them, with the engine time that it assumes."""
    request = PriceRequest(model="qwen3-30b-a3b", gpu="h200", weights=run.weights, routing="uniform", prices=source)
    ((_, scenario), *_) = scenarios_of(request)
    grid = Step.uniform(batch=run.batch, context=run.context)
    return Pricer(scenario).verify(grid).total_seconds


def report(out: Console) -> list[Accuracy]:
    runs = list(measured_runs())
    batches = tuple(f"{batch:g}" for batch in runs[0].batch)
    shown = table("Plain steps by precision: error by batch", ("weights", "prices"), batches)
    for measured in runs:
        for source in SOURCES:
            shown.add_row(measured.name, source, *(f"{error:+.1%}" for error in measured.errors(source)))
    out.print(shown)
    note(out, json.loads(FILE.read_text(encoding="utf-8"))["what"])
    out.print()
    errors = {source: np.abs(np.concatenate([part.errors(source) for part in runs])) for source in SOURCES}
    accuracy = Accuracy(
        what=f"plain steps in {len(runs)} precisions, nothing fitted (worst)",
        count=errors[SOURCES[0]].size,
        errors={source: median_and(float(np.median(part)), float(part.max())) for source, part in errors.items()},
    )
    return [accuracy]


if __name__ == "__main__":
    run(lambda: report(console()), __doc__)
