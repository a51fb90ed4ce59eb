"""How well laws scale to a GPU that was not measured: every measured GPU priced by the laws of its nearest neighbour.

    python -m lab.validation.scaled            # whole steps, and laws by kernel family
    python -m lab.validation.scaled --write    # also writes the errors that scaled prices state as their range

Compared are whole steps of a plain and a speculative decode, with the laws that were fitted to the GPU itself, and laws
one by one (`scaled_families.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console

from lab import CATALOG
from lab.terminal import console, note, parser, table
from lab.validation.accuracy import Accuracy, median_and
from lab.validation.scaled_families import ALTERNATIVES, DIES, FamilyError, family_errors
from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.lookup import bundled_model
from specmargin.catalog.prices import find_prices, measured_devices, scaled_prices
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.modes import RooflineForm
from specmargin.prices.adjusted import AdjustedPrices
from specmargin.prices.drafters import FREE
from specmargin.prices.kernels.scaled import nearest_device
from specmargin.prices.model import PriceModel
from specmargin.prices.roofline import Roofline
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
        prices = scaled_prices(device, _ENGINE, without=DIES.get(device.name, ()))
        if neighbour is None or prices is None:
            continue
        truth = _steps(device, _kernels(find_prices("laws", device, _ENGINE, RooflineForm.PER_COMPONENT)))
        scaled = _steps(device, prices)
        datasheet = _steps(device, Roofline(device=device))
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


def _kernels(prices: PriceModel) -> PriceModel:
    """Without what an engine's own kernels add, which is alike on both sides."""
    while isinstance(prices, AdjustedPrices):
        prices = prices.inner
    return prices


def _others(device: Device) -> list[Device]:
    return [other for other in measured_devices() if other.name not in DIES.get(device.name, ())]


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


# --- kernel families ---


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyLine:
    """All left-out laws of one family; errors as logarithms."""

    family: str
    gpus: int
    laws: int
    median: float
    spread: float  # holds 80%
    by_alternative: dict[str, float]  # medians, if its times followed something else
    datasheet: float
    datasheet_spread: float


def family_lines() -> list[FamilyLine]:
    by_family: dict[str, list[FamilyError]] = {}
    for error in family_errors():
        by_family.setdefault(error.family, []).append(error)
    return [_family_line(name, errors) for name, errors in sorted(by_family.items())]


def _family_line(name: str, errors: list[FamilyError]) -> FamilyLine:
    own = np.abs([value for error in errors for value in error.errors])
    datasheet = np.abs([value for error in errors for value in error.datasheet])
    return FamilyLine(
        family=name,
        gpus=len({error.gpu for error in errors}),
        laws=len(errors),
        median=float(np.median(own)),
        spread=float(np.quantile(own, 0.8)),
        by_alternative={
            rule: float(np.median(np.abs([value for error in errors for value in error.by_alternative[rule]])))
            for rule in ALTERNATIVES
        },
        datasheet=float(np.median(datasheet)),
        datasheet_spread=float(np.quantile(datasheet, 0.8)),
    )


def datasheet_spreads(lines: list[FamilyLine]) -> dict[str, float]:
    """By operation: the median of its families."""
    kinds = {"gemm": ("gemm",), "experts": ("experts",), "collective": ("all-reduce", "all-to-all")}
    kinds["attention"] = ("attention", "mla", "dsa", "csa", "hca", "gdn")
    return {
        kind: round(float(np.median([x.datasheet_spread for x in lines if x.family.split("/")[0] in operations])), 3)
        for kind, operations in kinds.items()
    }


def write_errors(lines: list[FamilyLine]) -> None:
    """What `catalog/prices.py` reads."""
    families = ",\n".join(
        f'    "{line.family}": {{"laws": {line.laws}, "gpus": {line.gpus}, "median": {line.median:.3f}, '
        f'"spread": {line.spread:.3f}, "datasheet_spread": {line.datasheet_spread:.3f}}}'
        for line in lines
    )
    source = json.dumps("measured GPUs left out one at a time (python -m lab.validation.scaled --write)")
    datasheet = json.dumps(datasheet_spreads(lines))
    text = f'{{\n  "source": {source},\n  "datasheet": {datasheet},\n  "families": {{\n{families}\n  }}\n}}\n'
    (CATALOG / "scaled_errors.json").write_text(text)


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
    _report_families(out, family_lines())
    return [_accuracy(lines)]


def _report_families(out: Console, lines: list[FamilyLine]) -> None:
    shown = table(
        "Laws of a left-out GPU: median error (a logarithm)",
        ("family",),
        ("GPUs", "laws", "as used", "80% within", *(f"if {name}" for name in ALTERNATIVES), "datasheet"),
    )
    for line in lines:
        others = (f"{line.by_alternative[name]:.2f}" for name in ALTERNATIVES)
        errors = (f"{line.median:.2f}", f"{line.spread:.2f}", *others, f"{line.datasheet:.2f}")
        shown.add_row(line.family, str(line.gpus), str(line.laws), *errors)
    out.print(shown)
    note(out, "Reading follows the bandwidth and products the matrix rate; 'if': were all other times to follow that.")
    out.print()


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


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="write catalog/scaled_errors.json")
    if options.parse_args().write:
        write_errors(family_lines())
    report(console())


if __name__ == "__main__":
    main()
