"""From a name on the command line to a model or a device."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from specmargin.architecture.precision import Precision
from specmargin.architecture.reader import cached_config, load_architecture, read_architecture
from specmargin.architecture.types import Architecture
from specmargin.errors import CatalogError, nearest_names
from specmargin.files import existing
from specmargin.hardware.device import Device, load_device, read_device
from specmargin.sources import published

_FOLDER = files("specmargin.catalog")


@cache
def model_names() -> tuple[str, ...]:
    names = (entry.name for entry in (_FOLDER / "models").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


@cache
def bundled_model(name: str, *, weights: Precision | None = None) -> Architecture:
    entry = json.loads((_FOLDER / "models" / f"{name}.json").read_text(encoding="utf-8"))
    return read_architecture(
        entry["config"],
        name=name,
        origin=f"bundled {name}",
        weights=weights,
        source=published(entry["source"]),
    )


def hub_id(name: str) -> str:
    """The Hugging Face id of a bundled model."""
    return str(json.loads((_FOLDER / "models" / f"{name}.json").read_text(encoding="utf-8"))["hub_id"])


def find_model(spec: str, *, weights: Precision | None = None) -> Architecture:
    """A bundled name, a path to a `config.json` or a model folder, or an id in the local hub cache."""
    if spec.lower() in model_names():
        return bundled_model(spec.lower(), weights=weights)
    path = existing(spec)
    if path is not None or spec.endswith(".json"):
        return load_architecture(path or Path(spec), weights=weights)
    for name in model_names():
        if hub_id(name).lower() == spec.lower():
            return bundled_model(name, weights=weights)
    snapshot = cached_config(spec) if "/" in spec else None
    if snapshot is not None:
        return load_architecture(snapshot, weights=weights, name=spec)
    raise CatalogError(
        f"{spec!r} is neither a bundled model, a path, nor in the local hub cache"
        f"{nearest_names(spec.rsplit('/', 1)[-1], model_names())}; `specmargin models` lists the bundled ones"
    )


@cache
def _device_tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((_FOLDER / "devices.toml").read_text(encoding="utf-8"))


@cache
def _device_aliases() -> dict[str, str]:
    return {alias: name for name, table in _device_tables().items() for alias in table.get("aliases", ())}


def device_names() -> tuple[str, ...]:
    return tuple(_device_tables())


def bundled_device(name: str) -> Device:
    return read_device(name, _device_tables()[name], f"bundled device {name}")


def find_device(spec: str) -> Device:
    """A bundled name or alias, or the user's TOML file."""
    name = spec.lower().replace("_", "-")
    name = _device_aliases().get(name, name)
    if name in _device_tables():
        return bundled_device(name)
    path = existing(spec)
    if spec.endswith(".toml") or path is not None:
        return load_device(path or Path(spec))
    raise CatalogError(
        f"unknown GPU {spec!r}{nearest_names(spec, (*device_names(), *_device_aliases()))}; "
        "`specmargin gpus` lists the bundled ones; a TOML file describes any other"
    )
