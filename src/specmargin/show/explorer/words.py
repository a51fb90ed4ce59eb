"""The words of the page: its names of controls instead of options of the command line, and of what limits a step."""

from __future__ import annotations

import re

#: By field; the labels of the controls in `static/index.html`, in lower case.
TITLES = {
    "gpu": "GPU",
    "gpus": "number of GPUs",
    "parallel": "parallelism",
    "weights": "weight precision",
    "kv_cache": "KV cache precision",
    "memory_utilization": "memory utilisation",
    "routing": "routing profile",
    "concurrency": "number of concurrent requests",
    "qps": "requests per second",
    "isl": "input tokens",
    "osl": "output tokens",
    "range_ratio": "range ratio of lengths",
    "tpot_slo": "TPOT target",
    "depth": "maximum depth",
    "gpu_hour_price": "price per GPU-hour",
    "draft_p_min": "draft_p_min in the address",
    "draft_weights": "draft_weights in the address",
    "draft_vocabulary": "draft_vocabulary in the address",
    "form": "form in the address",
    "backend": "backend in the address",
}
#: What limits a component of a step, by resource; also in `static/answer.js`.
LIMITS = {"bytes": "limited by memory reads", "flops": "limited by arithmetic", "fixed time": "a fixed time"}
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
_GPUS = re.compile(r"--gpus (\d+)")
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


def title(field: str) -> str:
    return TITLES.get(field, field.replace("_", " "))


def page_words(message: str) -> str:
    """`try --gpus 8, or smaller --weights` is `try 8 GPUs, or smaller weight precision`."""
    message = _GPUS.sub(r"\1 GPUs", message)
    message = _OPTION.sub(lambda match: title(match.group(1).replace("-", "_")), message)
    return message[:1].upper() + message[1:] if message.split(" ", 1)[0].isalpha() else message


def size(parameters: float) -> str:
    """`34.7 B`, `1.57 T` or `12 M`: three digits."""
    unit, letter = next(((unit, letter) for unit, letter in _UNITS if parameters >= 0.9995 * unit), _UNITS[-1])
    return f"{parameters / unit:.3g} {letter}"


def bottleneck(bound_by: str) -> str:
    """`routed experts: bytes` is `routed experts (limited by memory reads)`; collectives are their own resource."""
    component, _, resource = bound_by.partition(": ")
    return component if resource in ("", component) else f"{component} ({LIMITS.get(resource, resource)})"
