"""The surface that others build on, as documents: key paths with their types, schemas without their words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden.adapters import surface

# Maps whose keys are data: `*` stands for all of them, as it does for keys that are numbers.
_MAPS = {
    "best_depth",
    "categories",
    "cell",
    "conditions",
    "counted",
    "errors",
    "faults",
    "hurdle_by_component",
    "kernels",
    "modes",
    "operations_per_second",
    "options",
    "ranges",
    "refused",
    "seconds_by_component",
    "shapes",
    "sources",
    "step_seconds",
    "steps",
    "unfinished",
}
_WORDS = {"title", "description", "examples"}
_NO_JSON = ("explore", "report", "site")  # pages and a file: their JSON names these, and holds a plan


def verb_keys(name: str) -> dict[str, str]:
    """Key paths of one verb's JSON, and the type of what stands there."""
    with TemporaryDirectory() as folder:
        return key_paths(surface.VERB_OUTPUTS[name](Path(folder)))


def key_paths(document: Any) -> dict[str, str]:
    """`rows[].speedup: float`. Nothing is said of null where something else stands there too."""
    types: dict[str, set[str]] = {}
    for path, kind in _walk(document, ""):
        types.setdefault(path, set()).add(kind)
    return {path: "|".join(sorted(kinds - {"null"} or kinds)) for path, kinds in sorted(types.items())}


def _walk(value: Any, path: str) -> Iterator[tuple[str, str]]:
    last = path.rsplit(".", 1)[-1]
    if isinstance(value, dict):
        if path:
            yield path, "object"
        is_map = last in _MAPS or (bool(value) and all(key.isdigit() for key in value))
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{'*' if is_map else key}".lstrip("."))
    elif isinstance(value, list):
        yield path, "list"
        for inner in value:
            yield from _walk(inner, f"{path}[]")
    elif last == "schema":
        yield path, str(value)
    else:
        yield path, {"NoneType": "null"}.get(type(value).__name__, type(value).__name__)


def without_words(schema: Any) -> Any:
    """References resolved and words left out: what remains is what a file must look like."""
    definitions = schema.get("$defs", {})

    def plain(part: Any, *, names: bool = False) -> Any:
        if isinstance(part, list):
            return [plain(inner) for inner in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return plain(definitions[part["$ref"].rsplit("/", 1)[-1]] | {k: v for k, v in part.items() if k != "$ref"})
        return {
            key: plain(inner, names=key == "properties")
            for key, inner in part.items()
            if names or key not in _WORDS | {"$defs"}
        }

    return plain(schema)


def metrics() -> Any:
    with TemporaryDirectory() as folder:
        return surface.metric_names(Path(folder))


def schemas() -> Any:
    schemas_by_name = {name: without_words(schema) for name, schema in surface.json_schemas().items()}
    return schemas_by_name | {"laws": key_paths(surface.bundled_laws())}


def tables() -> Any:
    with TemporaryDirectory() as folder:
        return surface.written_columns(Path(folder))


def commands() -> Any:
    """Entry points, and every verb: those without JSON are named, so that none is forgotten."""
    covered = {name.split()[0].strip(",") for name in surface.VERB_OUTPUTS} | set(_NO_JSON)
    verbs = {name: "recorded" if name in covered else "not recorded" for name in surface.verb_names}
    return {"entry points": surface.entry_points(), "verbs": verbs}


DOCUMENTS: dict[str, Callable[[], Any]] = {
    "commands": commands,
    "metrics": metrics,
    "releases": surface.releases,
    "schemas": schemas,
    "tables": tables,
}
VERBS = tuple(surface.VERB_OUTPUTS)
