"""Options that several verbs share, and the scenario they make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specmargin.architecture.precision import precision_named
from specmargin.catalog.drafters import DraftChoice, available_drafters, find_acceptance, find_drafter
from specmargin.catalog.lookup import find_device, find_model
from specmargin.decisions.scenario import Scenario
from specmargin.errors import CatalogError, ScenarioError
from specmargin.hardware.layout import Layout, Parallel
from specmargin.prices.model import EngineTime
from specmargin.prices.roofline import Roofline, RooflineForm
from specmargin.routing.profile import find_routing
from specmargin.sources import Source, SourceKind, assumed

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A bundled name, a config.json, a model folder, or an id in the local hub cache."
    ),
]
Gpu = Annotated[str, typer.Option("--gpu", help="A bundled device (`specmargin gpus`) or your own as FILE.toml.")]
Gpus = Annotated[int, typer.Option("--gpus", help="How many of them serve one copy of the model.")]
ParallelOption = Annotated[
    Parallel,
    typer.Option("--parallel", help="tp: split everything; ep: whole experts a GPU; dp-ep: own sequences a GPU too."),
]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        help="mtp, eagle[:CONFIG], dflash[:CONFIG], ssd[:INNER@HIT], model:MODEL, ngram, free. "
        "Default: mtp where the model has a head, else eagle.",
    ),
]
AcceptanceOption = Annotated[
    str | None,
    typer.Option(
        "--acceptance",
        help="0.8 (each token), 0.78,0.58,0.44 (survival by depth), length:2.3@4 (accepted drafts at depth 4), "
        "or a bundled curve (mtp, dflash, eagle ...). Default: the drafter's bundled curve.",
    ),
]
RoutingOption = Annotated[str, typer.Option("--routing", help="How positions choose experts: uniform.")]
ContextOption = Annotated[int, typer.Option("--context", help="Tokens in the cache of each sequence.", min=0)]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights", help="Store linear layers as fp8, nvfp4, mxfp4, int4-g128, q4_k ... instead."),
]
KvOption = Annotated[str | None, typer.Option("--kv-cache", help="Precision of the KV cache: bf16, fp8.")]
PricesOption = Annotated[str, typer.Option("--prices", help="Where prices come from: datasheet.")]
FormOption = Annotated[
    RooflineForm,
    typer.Option("--form", help="One roofline a component (kernels in sequence), or one over the whole step."),
]
StepTimeOption = Annotated[
    float, typer.Option("--step-ms", help="Engine time of every step outside the kernels, in ms.", min=0)
]
PositionTimeOption = Annotated[
    float, typer.Option("--position-us", help="Engine time a step and position, in µs.", min=0)
]
OffTimeOption = Annotated[
    float, typer.Option("--off-ms", help="What a step takes longer with speculation set up but off, in ms.", min=0)
]
SequenceTimeOption = Annotated[
    float, typer.Option("--sequence-ms", help="Engine time a step and sequence, in ms.", min=0)
]
LayerTimeOption = Annotated[float, typer.Option("--layer-us", help="Fixed kernel time a layer, in µs.", min=0)]
UtilizationOption = Annotated[
    float, typer.Option("--memory-utilization", help="Part of GPU memory that the engine may use.")
]
_LONGEST_MS = 1e6  # a thousand seconds: anything longer is a typing mistake
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output (versioned schema).")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOptions:
    """The shared options, as given."""

    model: str
    gpu: str
    gpus: int = 1
    parallel: Parallel = Parallel.TP
    drafter: str | None = None
    acceptance: str | None = None
    routing: str = "uniform"
    context: int = 1024
    weights: str | None = None
    kv_cache: str | None = None
    prices: str = "datasheet"
    form: RooflineForm = RooflineForm.PER_COMPONENT
    step_ms: float = 0.0
    sequence_ms: float = 0.0
    position_us: float = 0.0
    layer_us: float = 0.0
    off_ms: float = 0.0
    memory_utilization: float = 0.9

    def choices(self) -> list[tuple[DraftChoice, Scenario]]:
        """One scenario, or one for every drafter at hand with `--drafter all`."""
        target = find_model(self.model, weights=precision_named(self.weights) if self.weights else None)
        if self.drafter == "all":
            picked = available_drafters(target)
        else:
            default = "mtp" if target.draft_head is not None else "eagle"
            picked = [find_drafter(self.drafter or default, target)]
        device = find_device(self.gpu)
        if self.prices != "datasheet":
            raise CatalogError(f"unknown prices {self.prices!r}; known: datasheet")
        return [
            (
                choice,
                Scenario(
                    architecture=target,
                    device=device,
                    prices=Roofline(device=device, form=self.form),
                    routing=find_routing(self.routing),
                    drafter=choice.drafter,
                    survival=find_acceptance(self.acceptance, choice, target, max_depth=choice.drafter.max_depth or 8),
                    layout=Layout(gpus=self.gpus, parallel=self.parallel),
                    context=float(self.context),
                    engine_time=self._engine_time(),
                    kv=precision_named(self.kv_cache) if self.kv_cache else None,
                    memory_utilization=self.memory_utilization,
                ),
            )
            for choice in picked
        ]

    def one(self) -> tuple[DraftChoice, Scenario]:
        choices = self.choices()
        if len(choices) != 1:
            raise CatalogError("--drafter all is for `plan`; name one drafter here")
        return choices[0]

    def _engine_time(self) -> EngineTime:
        given = (self.step_ms, self.sequence_ms, self.position_us, self.layer_us, self.off_ms)
        if not all(0.0 <= value < _LONGEST_MS for value in given):
            raise ScenarioError(f"engine times must be numbers from 0 to {_LONGEST_MS:g}, got {given}")
        source = (
            Source(kind=SourceKind.MEASURED, detail="engine time given by the user")
            if any(given)
            else assumed("none: kernels alone, so small batches look faster than they are (--step-ms, --layer-us)")
        )
        return EngineTime(
            step_seconds=self.step_ms * 1e-3,
            sequence_seconds=self.sequence_ms * 1e-3,
            position_seconds=self.position_us * 1e-6,
            layer_seconds=self.layer_us * 1e-6,
            off_step_seconds=self.off_ms * 1e-3,
            source=source,
        )


def parse_numbers(text: str, name: str, *, most: int = 4096) -> list[int]:
    """`1,2,4`, `1-8` or `1,4-6,32`; k and m mean 1024 and 1,048,576 (8k)."""
    values: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().lower().partition("-")
        try:
            first, last = _number(low), _number(high) if dash else _number(low)
        except ValueError:
            raise ScenarioError(f"{name}: {part!r} is neither a number nor a range such as 1-8") from None
        if last < first:
            raise ScenarioError(f"{name}: the range {part!r} is empty")
        if last - first >= most or len(values) >= most:
            raise ScenarioError(f"{name}: at most {most} values, {text!r} has more")
        values.update(range(first, last + 1))
    return sorted(values)


def _number(text: str) -> int:
    scale = {"k": 1024, "m": 1_048_576}.get(text[-1:], 1)
    digits = text[:-1] if scale > 1 else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise ValueError(text)
    return int(digits) * scale


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Never lose somebody's file: overwrite only when told to."""
    try:
        if path.exists() and not force:
            raise ScenarioError(f"{path} exists; give --force to overwrite it")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be written ({error.strerror or error})") from None
