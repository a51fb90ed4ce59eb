"""Options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

from specmargin.app.scenarios import ScenarioOptions as ScenarioOptions  # noqa: PLC0414 (verbs find all of it here)
from specmargin.errors import ScenarioError
from specmargin.hardware.layout import Parallel
from specmargin.prices.roofline import RooflineForm
from specmargin.routing.placement import Placement

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
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output (versioned schema).")]


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
