"""Engine time beside the kernels, by name: fitted to served measurements, or measured on one machine."""

from __future__ import annotations

from functools import cache
from typing import Any

from specmargin.catalog.bundled import read_bundled
from specmargin.errors import CatalogError, nearest_names
from specmargin.prices.model import EngineTime
from specmargin.sources import Source, SourceKind, assumed

NO_ENGINE_TIME = EngineTime(
    source=assumed("none: kernels alone, so small batches look faster than they are (--engine-time)")
)


@cache
def _entries() -> dict[tuple[str, str], EngineTime]:
    times = read_bundled("engine_times.json")["times"]
    return {(entry["name"], entry["prices"]): _engine_time(entry) for entry in times}


def _engine_time(entry: dict[str, Any]) -> EngineTime:
    numbers = {name: value for name, value in entry.items() if name.endswith("_seconds")}
    return EngineTime(**numbers, source=Source(kind=SourceKind(entry["kind"]), detail=entry["detail"]))


def engine_time_names() -> list[str]:
    return ["none", *dict.fromkeys(name for name, _ in _entries())]


def find_engine_time(name: str | None, *, engine: str, prices: str) -> EngineTime:
    """None: the engine's own with measured prices; no engine time with a datasheet roofline, which is a lower bound."""
    fitted_beside = "laws" if prices == "scaled" else prices
    if name is None:
        return _entries().get((engine, fitted_beside), NO_ENGINE_TIME)
    if name == "none":
        return NO_ENGINE_TIME
    names = engine_time_names()
    if name not in names:
        raise CatalogError(f"unknown engine time {name!r}{nearest_names(name, names)}; known: {', '.join(names)}")
    return _entries()[name, prices if prices in {"laws", "tables"} else "laws"]
