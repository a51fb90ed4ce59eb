"""Which engines run on a GPU, and which of them is its default (engine_support.toml)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specmargin.architecture.precision import Arithmetic, Precision, precision_named
from specmargin.architecture.types import Architecture
from specmargin.catalog.bundled import read_bundled
from specmargin.errors import HardwareError
from specmargin.hardware.device import Device
from specmargin.modes import ENGINES

_READERS = {"gguf": "llamacpp", "mlx": "mlx"}
WITHOUT_FP8 = {
    "llamacpp": " (GGUF): name what you serve, such as --weights q8_0",
    "mlx": ": name what you serve, such as --weights 8bit",
}
_FP8 = ("fp8", "mxfp8")  # how the names of such precisions begin


def _support(engine: str) -> dict[str, Any]:
    table: dict[str, Any] = read_bundled("engine_support.toml")[engine]
    return table


def engines_of(device: Device) -> tuple[str, ...]:
    """The engines that run on it, its default first; all of them where its vendor is unknown."""
    return tuple(name for name in ENGINES if _runs(_support(name), device))


def default_engine(device: Device, weights: Iterable[str] = (), *, hosted: bool = False) -> str:
    """The engine that reads these precisions, if one alone does; else the first that runs on the GPU.

    `hosted`: experts are computed in main memory, for which llama.cpp is what people run.
    """
    running = engines_of(device)
    readers = (_READERS.get(precision_named(each).container) for each in weights)
    first = "llamacpp" if hosted else running[0]
    return next((reader for reader in readers if reader in running), first)


def check_weights(engine: str, title: str, device: Device, weights: Precision) -> None:
    """An error for weights of MLX in another engine, and for GGUF in MLX."""
    reader = _READERS.get(weights.container)
    if reader is None or reader == engine or (reader == "llamacpp" and engine != "mlx"):
        return
    own = "--weights q4_k_m" if engine == "llamacpp" else "--weights 4bit" if engine == "mlx" else "--weights int4-g128"
    other = f"--engine {reader}, or " if reader in engines_of(device) else ""
    raise HardwareError(f"{title} does not read {weights.name} weights; use {other}{own}")


def _runs(support: dict[str, Any], device: Device) -> bool:
    given = True if device.vendor is None else support.get(device.vendor, False)
    if isinstance(given, list):
        return device.architecture is None or device.architecture in given
    if given is True or given is False:
        return given
    capability = device.compute_capability
    return capability is None or capability >= int(given)


def check_engine(engine: str, title: str, device: Device) -> None:
    """An error where the engine does not run on this GPU."""
    running = engines_of(device)
    if engine not in running:
        if device.processor is not None:
            raise HardwareError(f"{title} on a processor is not priced ({device.title}); use --engine llamacpp")
        others = " or ".join(f"--engine {other}" for other in running)
        raise HardwareError(f"{title} does not run on {device.title}: {_support(engine)['elsewhere']}; use {others}")


def fp8_warning(engine: str, title: str, device: Device, target: Architecture) -> str | None:
    """How fp8 weights are multiplied on a GPU without fp8 matrix units; an error where the engine cannot."""
    formats = [name for name in target.weight_precisions if name.startswith(_FP8)]
    if not formats or device.vendor is None:
        return None
    if engine in WITHOUT_FP8:
        return f"{title} has no {formats[0]} weights{WITHOUT_FP8[engine]}"
    if Arithmetic.FP8 in device.operations_per_second or device.architecture is None:
        return None
    kernels = _support(engine).get("fp8_kernels", {}).get(device.architecture)
    if kernels is None:
        raise HardwareError(
            f"{device.title} has no fp8 matrix units, and {title} has no other kernels for {formats[0]} weights there; "
            "use another engine, or --weights bf16 or int4-g128"
        )
    return f"no fp8 matrix units on {device.name}: {title} multiplies fp8 weights in bf16 ({kernels})"
