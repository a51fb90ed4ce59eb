"""How well laws scale to a GPU that was not measured: every measured GPU priced by the laws of its nearest neighbour.

    python -m lab.validation.scaled

Compared are whole steps of a plain and a speculative decode, with the laws that were fitted to the GPU itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console

from lab.terminal import console, note, run, table
from lab.validation.accuracy import Accuracy, median_and
from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.lookup import bundled_model
from specmargin.catalog.prices import find_prices, measured_devices, scaled_prices
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.modes import RooflineForm
from specmargin.prices.drafters import FREE
from specmargin.prices.kernels.scaled import nearest_device
from specmargin.prices.model import PriceModel
from specmargin.routing.profile import UNIFORM
from specmargin.step import FloatArray, Step

#: Models with the number of GPUs that serve them: dense, mixtures, latent attention and a hybrid.
MODELS = (("llama-3.1-8b", 1), ("qwen3-30b-a3b", 1), ("qwen3.6-35b-a3b", 1), ("deepseek-v3", 8), ("llama-3.1-70b", 4))
_BATCHES = np.array([1.0, 4.0, 16.0, 64.0, 256.0])
_DEPTHS = (0.0, 3.0)
_ENGINE = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLine:
    """Steps of one GPU: error of laws scaled from its neighbour, and of the datasheet."""

    gpu: str
    scaled_from: str
    steps: int
    median_error: float
    p90_error: float
    ratio_error: float  # of a verify step over a plain step, which decides about speculation
    datasheet_error: float
    datasheet_ratio_error: float


def scaling_lines() -> Iterator[ScalingLine]:
    """The nearest other GPU of every measured one. GPUs of one die are no test of each other."""
    for device in measured_devices():
        neighbour = nearest_device(device, _others(device))
        prices = scaled_prices(device, _ENGINE, without=_DIES.get(device.name, ()))
        if neighbour is None or prices is None:
            continue
        truth = _steps(device, find_prices("laws", device, _ENGINE, RooflineForm.PER_COMPONENT))
        scaled = _steps(device, prices)
        datasheet = _steps(device, find_prices("datasheet", device, _ENGINE, RooflineForm.PER_COMPONENT))
        error = np.abs(scaled / truth - 1.0)
        yield ScalingLine(
            gpu=device.name,
            scaled_from=neighbour.name,
            steps=int(error.size),
            median_error=float(np.median(error)),
            p90_error=float(np.quantile(error, 0.9)),
            ratio_error=_ratio_error(scaled, truth),
            datasheet_error=float(np.median(np.abs(datasheet / truth - 1.0))),
            datasheet_ratio_error=_ratio_error(datasheet, truth),
        )


#: GPUs with the same die, or nearly: laws of one are laws of the other.
_DIES = {
    name: tuple(other for other in dies if other != name)
    for dies in (("h100", "h200"), ("b200", "b300", "gb200", "gb300"))
    for name in dies
}


def _others(device: Device) -> list[Device]:
    return [other for other in measured_devices() if other.name not in _DIES.get(device.name, ())]


def _ratio_error(predicted: FloatArray, truth: FloatArray) -> float:
    ratio = (predicted[..., 1] / predicted[..., 0]) / (truth[..., 1] / truth[..., 0])
    return float(np.median(np.abs(ratio - 1.0)))


def _steps(device: Device, prices: PriceModel) -> FloatArray:
    """Seconds by model, batch and depth."""
    return np.array([_model_steps(device, prices, model, gpus) for model, gpus in MODELS])


def _model_steps(device: Device, prices: PriceModel, model: str, gpus: int) -> FloatArray:
    roomy = replace(device, fabric=replace(device.fabric, gpus_per_node=max(device.fabric.gpus_per_node, gpus)))
    scenario = Scenario(
        architecture=bundled_model(model),
        device=roomy,
        prices=prices,
        routing=UNIFORM,
        drafter=FREE,
        survival=parse_acceptance("0"),
        layout=Layout(gpus=gpus),
    )
    step = Step.uniform(batch=_BATCHES[:, np.newaxis], depth=np.array(_DEPTHS), context=1024.0)
    return Pricer(scenario).verify(step).total_seconds


# --- the report ---


def report(out: Console) -> list[Accuracy]:
    lines = list(scaling_lines())
    shown = table(
        "GPUs priced by the laws of another one: error against their own laws",
        ("gpu", "scaled from"),
        ("steps", "median", "p90", "verify over plain", "datasheet", "verify over plain"),
    )
    for line in lines:
        errors = (f"{line.median_error:.1%}", f"{line.p90_error:.0%}", f"{line.ratio_error:.1%}")
        datasheet = (f"{line.datasheet_error:.1%}", f"{line.datasheet_ratio_error:.1%}")
        shown.add_row(line.gpu, line.scaled_from, str(line.steps), *errors, *datasheet)
    out.print(shown)
    note(out, "GPUs with the same die are not used for each other.")
    out.print()
    return [_accuracy(lines)]


def _accuracy(lines: list[ScalingLine]) -> Accuracy:
    def median(name: str) -> float:
        return float(np.median([getattr(line, name) for line in lines]))

    return Accuracy(
        what=f"laws scaled to {len(lines)} other GPUs: steps (verify over plain)",
        count=sum(line.steps for line in lines),
        errors={
            "laws": median_and(median("median_error"), median("ratio_error")),
            "datasheet": median_and(median("datasheet_error"), median("datasheet_ratio_error")),
        },
    )


if __name__ == "__main__":
    run(lambda: report(console()), __doc__)
