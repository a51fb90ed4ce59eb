"""From a request to its layout: by name (--parallel) or by sizes (--tp, --dp, --ep), as far as the engine runs it."""

from __future__ import annotations

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.architecture.types import Architecture
from specmargin.errors import ParallelismError
from specmargin.formats.base import EngineFormat
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel


def layout_of(request: ScenarioRequest, engine: EngineFormat, target: Architecture) -> Layout:
    """How the request spreads the model; an error where the engine cannot run that."""
    layout = _sized(request) if _has_sizes(request) else _named(request)
    if engine.layers_in_turn and not _has_sizes(request) and layout == Layout(gpus=layout.gpus):
        layout = Layout(gpus=layout.gpus, in_turn=layout.gpus > 1)
    if request.dp > 1 and not target.is_moe:
        raise ParallelismError(
            f"--dp {request.dp}: data-parallel copies of {target.name}, which has no experts, are independent servers; "
            "plan one of them, without --dp"
        )
    refusal = engine.refuses(layout)
    if refusal is not None:
        where = layout_text(request) if _has_sizes(request) else f"--parallel {request.parallel}"
        raise ParallelismError(f"{where}: {refusal}")
    return layout


def _has_sizes(request: ScenarioRequest) -> bool:
    return request.tp is not None or request.dp > 1 or request.ep


def layout_text(request: ScenarioRequest) -> str:
    """The layout in the words of the request."""
    if not _has_sizes(request):
        return str(request.parallel)
    sizes = {"pp": request.pp, "tp": request.tp or 1, "dp": request.dp}
    return " ".join([f"--{name} {size}" for name, size in sizes.items() if size > 1] + ["--ep"] * request.ep)


def _named(request: ScenarioRequest) -> Layout:
    if request.parallel is Parallel.DP_EP and request.gpus == request.pp:
        raise ParallelismError("--parallel dp-ep: one GPU has nothing to be parallel with; add --gpus N")
    return Layout(
        gpus=request.gpus,
        parallel=request.parallel,
        stages=request.pp,
        redundant_experts=request.redundant_experts,
    )


def _sized(request: ScenarioRequest) -> Layout:
    gpus, dp, pp = request.gpus, request.dp, request.pp
    if request.parallel is not Parallel.TP:
        raise ParallelismError(
            f"--parallel {request.parallel} and {layout_text(request)} both describe the layout; leave out --parallel"
        )
    groups = f"--dp {dp}" + (f" × --pp {pp}" if pp > 1 else "")
    if request.tp is None and gpus % (dp * pp):
        raise ParallelismError(f"{groups} does not divide --gpus {gpus}; give sizes whose product is {gpus}")
    tp = gpus // (dp * pp) if request.tp is None else request.tp
    if tp * dp * pp != gpus:
        raise ParallelismError(
            f"--tp {tp} × {groups} is {tp * dp * pp} GPUs, not --gpus {gpus}; leave out --gpus, or change the sizes"
        )
    if request.ep and tp * dp == 1:
        raise ParallelismError("--ep: one GPU has nothing to spread experts over; add --tp N or --dp N")
    return Layout.of(tp=tp, dp=dp, pp=pp, ep=request.ep, redundant_experts=request.redundant_experts)
