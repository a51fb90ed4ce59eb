"""The machines that `plan --gpu h100,4xh200,8xb200:ep` names, as one request each, with the price of each GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping

from specmargin.catalog.lookup import find_device
from specmargin.errors import InputError, ScenarioError
from specmargin.files import existing
from specmargin.hardware.device import Device
from specmargin.modes import Parallel
from specmargin.verbs.plan.request_schema import PlanRequest

_MOST = 16  # machines of one table
_SPEC = re.compile(r"(?:([0-9]{1,5})\s*[x×]\s*)?(.+?)(?::(tp|ep|dp-ep))?")


def machines(request: PlanRequest) -> list[PlanRequest]:
    """One request per machine; `--gpus` and `--parallel` are for those that name none of their own."""
    specs = [request.gpu] if existing(request.gpu) else list(dict.fromkeys(part.strip() for part in _parts(request)))
    if len(specs) > _MOST:
        raise ScenarioError(f"--gpu: at most {_MOST} GPUs in one table, got {len(specs)}")
    found = [_machine(request, spec) for spec in specs]
    prices = request.gpu_hour_price
    if not isinstance(prices, Mapping):
        return found
    by_name = _prices_by_name(prices, {find_device(each.gpu).name for each in found})
    return [each.model_copy(update={"gpu_hour_price": by_name.get(find_device(each.gpu).name)}) for each in found]


def machine_name(device: Device, gpus: int, layout: str) -> str:
    """`h200`, `4 × h200` or `8 × h200 ep`."""
    if gpus == 1:
        return device.name
    return f"{gpus} × {device.name}" + ("" if layout == Parallel.TP else f" {layout}")


def _parts(request: PlanRequest) -> list[str]:
    parts = request.gpu.split(",")
    if not all(part.strip() for part in parts):
        raise ScenarioError(f"--gpu {request.gpu}: a list names GPUs, such as h100,h200 or 4xh100,8xh200:ep")
    return parts


def _machine(request: PlanRequest, spec: str) -> PlanRequest:
    match = None if existing(spec) else _SPEC.fullmatch(spec)
    gpus, gpu, parallel = (None, spec, None) if match is None else match.groups()
    find_device(gpu)  # an unknown name is refused; a machine that cannot serve the model is a row that says so
    changes: dict[str, object] = {} if gpu == request.gpu else {"gpu": gpu}
    changes |= {} if gpus is None else {"gpus": int(gpus)}
    changes |= {} if parallel is None else {"parallel": Parallel(parallel)}
    if changes.get("gpus", 1) == 0:
        raise ScenarioError(f"--gpu {spec}: a machine has at least one GPU")
    return request.model_copy(update=changes) if changes else request


def _prices_by_name(prices: Mapping[str, float], planned: set[str]) -> dict[str, float]:
    by_name = {}
    for spec, price in prices.items():
        try:
            name = find_device(spec).name
        except InputError as error:
            raise ScenarioError(f"--gpu-hour-price: {error}") from None
        if name not in planned:
            raise ScenarioError(f"--gpu-hour-price: {spec} is none of the GPUs of --gpu ({', '.join(sorted(planned))})")
        by_name[name] = price
    return by_name
