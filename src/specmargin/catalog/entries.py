"""Entries of every kind as data: the bundled ones in the form of their schema, the kind of a file, and templates."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.entry_schema import SCHEMAS
from specmargin.catalog.lookup import bundled_models
from specmargin.catalog.machines import bundled_fabrics, bundled_hosts
from specmargin.catalog.processors import bundled_processors
from specmargin.catalog.user import FOLDERS, UserFile, read_values
from specmargin.errors import CatalogError, nearest_names

#: The entry whose figures a template has where none is named.
_EXAMPLES = {
    "model": "qwen3-30b-a3b",
    "gpu": "rtx-4090",
    "drafter": "eagle:qwen3-30b-a3b",
    "engine-time": "vllm:laws",
    "fabric": "roce-gb10",
    "host": "server",
    "processor": "ryzen-9950x",
}
_WIDTH = 118


def bundled_entries(kind: str) -> dict[str, dict[str, Any]]:
    """By name; a drafter is `KIND:TARGET`, an engine time `NAME:PRICES`."""
    match kind:
        case "model":
            return {name: read_bundled(f"models/{name}.json") for name in bundled_models()}
        case "gpu":
            return dict(read_bundled("devices.toml"))
        case "drafter":
            heads = read_bundled("heads.toml").items()
            return {
                f"{of}:{target}": {"drafter": of, "target": target} | table
                for of, tables in heads
                for target, table in tables.items()
            }
        case "engine-time":
            times = read_bundled("engine_times.json")["times"]
            return {f"{time['name']}:{time['prices']}": _engine_time(time) for time in times}
        case "fabric":
            return bundled_fabrics()
        case "host":
            return bundled_hosts()
        case "processor":
            return bundled_processors()
        case _:
            raise CatalogError(f"unknown kind {kind!r}{nearest_names(kind, FOLDERS)}; known: {', '.join(FOLDERS)}")


def _engine_time(time: Mapping[str, Any]) -> dict[str, Any]:
    """A bundled one is named by its engine and what differs (`vllm:sync`), the user's by its file."""
    return {"engine": time["name"].partition(":")[0]} | {key: value for key, value in time.items() if key != "name"}


def file_of(path: Path) -> UserFile:
    """A file as the entry that it is: of the kind of its folder, else of the kind with most of its fields."""
    by_folder = {folder: kind for kind, folder in FOLDERS.items()}
    kind = by_folder.get(path.resolve().parent.name) or _kind_of(path)
    return UserFile(kind=kind, name=path.stem.lower(), path=path)


def _kind_of(path: Path) -> str:
    values = read_values(path)
    inner = [value for value in values.values() if isinstance(value, dict)]
    fields = {*values, *(inner[0] if len(values) == 1 and inner else ())}  # a GPU may be a table of its own
    shared = {kind: len(fields & set(schema.model_fields)) for kind, schema in SCHEMAS.items()}
    kind = max(shared, key=lambda name: shared[name])
    if "model_type" in values:
        raise CatalogError(
            f"{path}: is a config.json by itself, which `specmargin plan {path}` takes; an entry of the catalog has it "
            "under 'config', beside 'hub_id' and 'source' (`specmargin models --template model`)"
        )
    if not shared[kind] - (fields >= {"source"}):
        kinds = ", ".join(SCHEMAS)
        raise CatalogError(f"{path}: has no field of an entry ({kinds}); `specmargin models --template KIND` shows one")
    return kind


# --- templates ---


def template(kind: str, name: str = "") -> str:
    """A file to start from, with the figures of a bundled entry: JSON of a model, else TOML with comments."""
    entries = bundled_entries(kind)
    chosen = name.lower() or _EXAMPLES[kind]
    if chosen not in entries:
        raise CatalogError(
            f"no bundled {kind} {name!r}{nearest_names(name, entries)}; without a name, it is an example"
        )
    if kind == "model":
        return json.dumps(entries[chosen], indent=2, ensure_ascii=False) + "\n"
    noun = "GPU" if kind == "gpu" else kind
    head = (
        f"# Your own {noun}, with the figures of {chosen}: replace them, then: specmargin models --check FILE\n"
        f"# As ~/.config/specmargin/{FOLDERS[kind]}/NAME.toml it is found by its NAME.\n"
    )
    return head + _fields(kind, entries[chosen])


def _fields(kind: str, entry: Mapping[str, Any]) -> str:
    known = SCHEMAS[kind].model_fields
    given = "".join(
        f"\n{_comment(field.description or name)}{name} = {_value(entry[name])}\n"
        for name, field in known.items()
        if name in entry
    )
    others = ", ".join(name for name in known if name not in entry)
    more = f"Other fields (`specmargin models --schema {kind}` explains them): {others}."
    return f"{given}\n{_comment(more)}" if others else given


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, _WIDTH))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(part)}" for key, part in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return _number(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """With an exponent that is a multiple of three: 80e9, 5e-6."""
    if value == 0 or 0.01 <= abs(value) < 1e3:
        return repr(value)
    exponent = 3 * math.floor(math.log10(abs(value)) / 3)
    return f"{value / 10.0**exponent:.10g}e{exponent}"
