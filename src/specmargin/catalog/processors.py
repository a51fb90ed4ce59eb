"""Processors by name: the bundled ones, the user's own, and each as a device."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from specmargin.architecture.precision import Arithmetic
from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.user import UserFile, checked_entry, read_values, user_file, user_files
from specmargin.errors import CatalogError, nearest_names
from specmargin.files import existing
from specmargin.hardware.device import Device, Fabric
from specmargin.hardware.processor import Processor, processor_of

KIND = "processor"
#: The host of a GPU where none is named.
DEFAULT = "ryzen-9950x"


def bundled_processors() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = read_bundled("processors.toml")
    return tables


def processor_names() -> tuple[str, ...]:
    """Bundled processors, then the user's. Of these, no file is read."""
    return tuple(dict.fromkeys((*bundled_processors(), *user_files(KIND))))


def named_processor(name: str) -> Processor | None:
    """The user's processor of this name, the bundled one, by an alias or its full name; None: unknown."""
    file = user_file(KIND, name)
    if file is not None:
        return user_processor(file)
    known = _names().get(_plain(name))
    return None if known is None else processor_of(known, bundled_processors()[known])


def find_processor(spec: str) -> Processor:
    """A name, or the user's file."""
    found = named_processor(spec)
    if found is not None:
        return found
    path = existing(spec)
    if path is not None or spec.endswith((".toml", ".json")):
        return file_processor(path or Path(spec))
    names = processor_names()
    raise CatalogError(
        f"--cpu {spec}: not a known processor{nearest_names(spec, names)}; `specmargin gpus` lists them; a TOML file "
        "describes any other (`specmargin gpus ryzen-9950x --template`)"
    )


def user_processor(file: UserFile) -> Processor:
    processor = processor_of(file.name, file.entry().model_dump())
    return replace(processor, source=file.sourced(processor.source, overrides=file.name in bundled_processors()))


def file_processor(path: Path) -> Processor:
    """From a file that has the fields of one at top level."""
    return processor_of(path.stem, checked_entry(KIND, read_values(path), str(path)).model_dump())


def is_processor_file(path: Path) -> bool:
    """Whether a TOML or JSON file describes a processor, not a GPU."""
    values = read_values(path)
    return "memory_channels" in values or "cores" in values


def as_device(processor: Processor) -> Device:
    """A machine without a GPU: the processor is the device, and its memory the main memory."""
    rate = processor.cores * processor.clock_hz * 32.0
    return Device(
        name=processor.name,
        title=processor.title,
        memory_bytes=processor.memory_bytes,
        bandwidth_bytes_per_second=processor.bandwidth_bytes_per_second,
        operations_per_second={Arithmetic.BF16: rate},
        fabric=Fabric(
            link_bytes_per_second=processor.bandwidth_bytes_per_second,
            link_latency_seconds=0.0,
            network_bytes_per_second=None,
            gpus_per_node=1,
        ),
        source=processor.source,
        architecture=f"cpu-{processor.instructions}",
        processor=processor,
    )


@cache
def _names() -> dict[str, str]:
    tables = bundled_processors().items()
    return {_plain(text): name for name, table in tables for text in (name, table["title"], *table.get("aliases", ()))}


_COMMON = re.compile(r"\b(amd|intel|core|ultra|processor|cpu|r|tm)\b|[^a-z0-9+]")


def _plain(name: str) -> str:
    return _COMMON.sub("", name.lower().replace("-", " ").replace("_", " "))
