"""What would make a refused scenario answerable: changes of one kind, each tried before it is offered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, takewhile
from time import monotonic
from typing import Any

from specmargin.catalog.lookup import usable_devices
from specmargin.catalog.prices import law_book
from specmargin.errors import InputError
from specmargin.show.explorer.request_schema import PageRequest
from specmargin.show.explorer.schema import Fix, Query
from specmargin.show.explorer.view import View, pricer_of
from specmargin.show.explorer.words import title

COUNTS = (1, 2, 4, 8, 16, 32, 64, 72, 128)
_NODE = 8  # GPUs of another kind are offered up to a node of them
_SMALLER = {"fp8": "FP8", "int4-g128": "INT4"}  # weights
_EACH = 3  # offers of a kind
_SECONDS = 4.0  # after which no further field is tried
_ASKED = ("model", "gpu", "gpus")  # the question itself: never replaced by a default


def fixes(view: View) -> list[Fix]:
    more = list(islice(_more_gpus(view), _EACH))
    fewest = int(more[0].changes["gpus"]) if more else COUNTS[-1]
    return [
        *islice(_without_a_field(view), _EACH),
        *more,
        *_smaller_weights(view, fewest),
        *islice(_other_gpus(view), _EACH),
    ]


def _more_gpus(view: View) -> Iterator[Fix]:
    for gpus in COUNTS:
        if gpus > view.request.gpus and _is_held(view, {"gpus": gpus}):
            yield Fix(text=_place(view.request.gpu, gpus), changes={"gpus": str(gpus)})


def _smaller_weights(view: View, fewest: int) -> Iterator[Fix]:
    """On as many GPUs as asked for, or on fewer than the weights of the scenario need."""
    for weights, name in _SMALLER.items():
        for gpus in COUNTS:
            if view.request.gpus <= gpus < max(fewest, view.request.gpus + 1):
                changes = {"weights": weights, "gpus": gpus}
                if weights != view.request.weights and _is_held(view, changes):
                    text = f"{name} weights" + (
                        "" if gpus == view.request.gpus else f" on {_place(view.request.gpu, gpus)}"
                    )
                    yield Fix(text=text, changes={field: str(value) for field, value in changes.items()})
                    break


def _other_gpus(view: View) -> Iterator[Fix]:
    """Those with measured kernels, the fewest GPUs first."""
    measured = [device.name for device in usable_devices() if law_book(device) is not None]
    for gpus in (count for count in COUNTS if view.request.gpus <= count <= max(_NODE, view.request.gpus)):
        for gpu in measured:
            if gpu != view.request.gpu and _is_held(view, {"gpu": gpu, "gpus": gpus}):
                yield Fix(text=_place(gpu, gpus), changes={"gpu": gpu, "gpus": str(gpus)})


def _without_a_field(view: View) -> Iterator[Fix]:
    """Each field that is not at its default, alone: the plan is made, because any part of it may have refused."""
    until = monotonic() + _SECONDS
    for name, field in takewhile(lambda _: monotonic() < until, Query.model_fields.items()):
        value = getattr(view.request, name, field.default)
        if name in _ASKED or value == field.default:
            continue
        if _is_held(view, {name: field.default}) and _is_planned(view, {name: field.default}):
            instead = "" if field.default is None else str(field.default)
            text = f"{title(name)} {instead}" if instead else f"without {title(name)}"
            yield Fix(text=text[:1].upper() + text[1:], changes={name: instead})


def _place(gpu: str, gpus: int) -> str:
    return gpu if gpus == 1 else f"{gpus} × {gpu}"


def _changed(view: View, changes: Mapping[str, Any]) -> PageRequest:
    alone = {"parallel": "tp"} if changes.get("gpus") == 1 else {}
    return view.request.model_copy(update={**changes, **alone})


def _is_held(view: View, changes: Mapping[str, Any]) -> bool:
    """Whether there is memory for the weights and the longest request, and a price. Takes milliseconds."""
    request = _changed(view, changes)
    try:
        _, pricer = pricer_of(request.as_plan().scenario_only())
        pricer.grid([1], 0)  # a layout may have no price: no network between nodes
        return pricer.with_context(_longest(request)).largest_batch(request.depth) > 0
    except InputError:
        return False


def _longest(request: PageRequest) -> float:
    if request.concurrency is None and request.qps is None:
        return float(request.context)
    return ((request.isl or 0) + (request.osl or 0)) * (1.0 + request.range_ratio)


def _is_planned(view: View, changes: Mapping[str, Any]) -> bool:
    """Without simulating a load, which can take a minute."""
    request = _changed(view, changes).model_copy(update={"qps": None, "concurrency": None})
    try:
        return bool(replace(view, request=request).plan)
    except InputError:
        return False
