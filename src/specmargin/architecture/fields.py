"""Fields of a configuration without a reader of its own: those that were read, harmless ones, and the rest."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from specmargin.errors import ArchitectureError


@cache
def _known() -> dict[str, Any]:
    return tomllib.loads((files("specmargin.architecture") / "general.toml").read_text(encoding="utf-8"))


@cache
def _spellings() -> dict[str, tuple[str, ...]]:
    """Every spelling of a field, by each of them."""
    groups = ((name, *others) for name, others in _known()["spellings"].items())
    return {name: group for group in groups for name in group}


class Fields(Mapping[str, Any]):
    """A configuration that answers to every spelling of a field and remembers what was asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        names = _spellings().get(key, (key,))
        self._read.update(names)
        given = {name: self._values[name] for name in names if self._values.get(name) is not None}
        if len({str(value) for value in given.values()}) > 1:
            raise ArchitectureError(f"{' and '.join(map(repr, given))} are one field and have different values")
        for value in given.values():
            return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def dismiss(self, *keys: str) -> None:
        """These say nothing more, given what was read."""
        for key in keys:
            self._read.update(_spellings().get(key, (key,)))

    def not_understood(self) -> list[str]:
        """Fields that nothing read and that are not known to be harmless. Empty ones are switched off."""
        return [name for name, value in self._values.items() if not (name in self._read or _is_harmless(name, value))]


def _is_harmless(name: str, value: Any) -> bool:
    known = _known()
    if value is None or value in ("", [], {}) or (value == 0 and not isinstance(value, bool)):
        return True
    if name in known["only"]:
        entries = value if isinstance(value, list) else [value]
        return all(entry == known["only"][name] for entry in entries)
    harmless = known["harmless"]
    return name in harmless["names"] or any(fnmatch.fnmatchcase(name, pattern) for pattern in harmless["patterns"])
