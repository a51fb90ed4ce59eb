"""Options that several verbs share, and the scenario they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from specmargin.architecture.precision import precision_named
from specmargin.catalog.drafters import DraftChoice, available_drafters, find_acceptance, find_drafter
from specmargin.catalog.engine_times import NO_ENGINE_TIME, find_engine_time
from specmargin.catalog.lookup import find_device, find_model
from specmargin.catalog.prices import find_prices
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.scenario import Scenario
from specmargin.engines.formats import find_engine
from specmargin.errors import CatalogError, ScenarioError
from specmargin.hardware.layout import Layout, Parallel
from specmargin.prices.measured import MeasuredPrices
from specmargin.prices.model import EngineTime, PriceModel
from specmargin.prices.roofline import RooflineForm
from specmargin.routing.placement import Placement
from specmargin.sources import Source, SourceKind

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
        "a bank of rounds or a profile of one (PATH or PATH:CATEGORY), or what is bundled (mtp, dflash, eagle ..., "
        "reference-moe[:CATEGORY]). Default: what is bundled of the drafter or its kind.",
    ),
]
RoutingOption = Annotated[
    str | None,
    typer.Option(
        "--routing",
        help="How positions choose experts: uniform, a bundled NAME[:CATEGORY], or FILE[:CATEGORY[=WEIGHT],...] "
        "made by `specmargin profile routing`. Default: the model's own profile, or one scaled to it.",
    ),
]
PlacementOption = Annotated[
    Placement, typer.Option("--placement", help="Experts over ranks, where the profile knows which expert is which.")
]
ContextOption = Annotated[int, typer.Option("--context", help="Tokens in the cache of each sequence.", min=0)]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights", help="Store linear layers as fp8, nvfp4, mxfp4, int4-g128, q4_k ... instead."),
]
KvOption = Annotated[str | None, typer.Option("--kv-cache", help="Precision of the KV cache: bf16, fp8.")]
PricesOption = Annotated[
    str | None,
    typer.Option(
        "--prices",
        help="datasheet (a roofline), laws (fitted to measured kernels), tables (the kernels themselves; needs "
        "the extra silicon), FILE.json with your own laws or measured steps (`specmargin measure`), or a bundled "
        "measurement. Default: tables if installed, else laws.",
    ),
]
EngineOption = Annotated[
    str, typer.Option("--engine", help="Whose kernels and whose own time are priced: vllm, sglang, trtllm, llamacpp.")
]
EngineTimeOption = Annotated[
    str | None,
    typer.Option(
        "--engine-time",
        help="Time beside the kernels: none, vllm, sglang, trtllm, vllm:slow-host, vllm:piecewise. Default: the "
        "engine's with measured prices, none with datasheet prices.",
    ),
]
GraphLimitOption = Annotated[
    int | None,
    typer.Option("--graph-limit", help="Positions of the largest captured CUDA graph. Default: the engine's.", min=1),
]
FormOption = Annotated[
    RooflineForm,
    typer.Option("--form", help="One roofline a component (kernels in sequence), or one over the whole step."),
]
StepTimeOption = Annotated[
    float | None, typer.Option("--step-ms", help="Engine time of every step outside the kernels, in ms.", min=0)
]
PositionTimeOption = Annotated[
    float | None, typer.Option("--position-us", help="Engine time a step and position, in µs.", min=0)
]
OffTimeOption = Annotated[
    float | None,
    typer.Option("--off-ms", help="What a step takes longer with speculation set up but off, in ms.", min=0),
]
SequenceTimeOption = Annotated[
    float | None, typer.Option("--sequence-ms", help="Engine time a step and sequence, in ms.", min=0)
]
LayerTimeOption = Annotated[float | None, typer.Option("--layer-us", help="Fixed kernel time a layer, in µs.", min=0)]
UtilizationOption = Annotated[
    float, typer.Option("--memory-utilization", help="Part of GPU memory that the engine may use.")
]
_LONGEST_SECONDS = 1e3  # anything longer is a typing mistake
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
    routing: str | None = None
    placement: Placement = Placement.CONTIGUOUS
    context: int = 1024
    weights: str | None = None
    kv_cache: str | None = None
    prices: str | None = None
    form: RooflineForm = RooflineForm.PER_COMPONENT
    engine: str = "vllm"
    engine_time: str | None = None
    graph_limit: int | None = None
    step_ms: float | None = None
    sequence_ms: float | None = None
    position_us: float | None = None
    layer_us: float | None = None
    off_ms: float | None = None
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
        engine = find_engine(self.engine)
        prices = find_prices(self.prices, device, engine.name, self.form)
        layout = Layout(gpus=self.gpus, parallel=self.parallel)
        steps = prices if isinstance(prices, MeasuredPrices) else None
        if steps is not None:
            steps.check(target, layout)
        engine_time = self._engine_time(prices, engine.name)
        limit = engine.position_limit(device) if steps is None else steps.engine_time.captured_positions
        engine_time = replace(engine_time, captured_positions=limit if self.graph_limit is None else self.graph_limit)
        return [
            (
                choice,
                Scenario(
                    architecture=target,
                    device=device,
                    prices=prices,
                    routing=find_routing(self.routing, target),
                    placement=self.placement,
                    drafter=choice.drafter,
                    survival=find_acceptance(self.acceptance, choice, target, max_depth=choice.drafter.max_depth or 8),
                    layout=layout,
                    context=float(self.context),
                    engine_time=engine_time,
                    draft_time=None if steps is None else steps.draft_time,
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

    def _engine_time(self, prices: PriceModel, engine: str) -> EngineTime:
        """The measurement's own or the catalog's, with what the user says in place of it."""
        if isinstance(prices, MeasuredPrices) and self.engine_time is None:
            found = prices.engine_time
        else:
            found = find_engine_time(self.engine_time, engine=engine, prices=prices.name)
        given = {
            "step_seconds": (self.step_ms, 1e-3),
            "sequence_seconds": (self.sequence_ms, 1e-3),
            "position_seconds": (self.position_us, 1e-6),
            "layer_seconds": (self.layer_us, 1e-6),
            "off_step_seconds": (self.off_ms, 1e-3),
        }
        said = {name: value * scale for name, (value, scale) in given.items() if value is not None}
        if not said:
            return found
        if not all(0.0 <= value < _LONGEST_SECONDS for value in said.values()):
            raise ScenarioError(f"engine times must be numbers from 0 to {_LONGEST_SECONDS:g} s")
        rest = "" if found is NO_ENGINE_TIME else f"; the rest {found.source}"
        source = Source(kind=SourceKind.MEASURED, detail=f"given by the user{rest}")
        return replace(found, source=source, **said)  # type: ignore[arg-type]  # mypy tries every field


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
