"""Reading a Hugging Face `config.json`: known keys only; a missing key is an error, not a guess."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specmargin.errors import ArchitectureError

#: More than any model has, by a part of the key's name: a typo must exhaust neither memory nor time.
_MOST = {
    "layers": 4096,
    "position": 1 << 40,
    "window": 1 << 40,
    "heads": 1 << 16,
    "experts": 1 << 14,
    "hidden": 1 << 20,
}
_LARGEST = 1 << 24  # of every other number


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A Hugging Face configuration and its name in error messages."""

    origin: str
    values: Mapping[str, Any]

    def _missing(self, key: str) -> ArchitectureError:
        return ArchitectureError(f"{self.origin}: the key {key!r} is missing; it is needed for this model family")

    def _wrong(self, key: str, wanted: str) -> ArchitectureError:
        return ArchitectureError(f"{self.origin}: {key!r} must {wanted}, got {self.values[key]!r}")

    def _given(self, key: str, default: Any) -> Any:
        """The value, or the default; without either, an error."""
        value = self.values.get(key)
        if value is None and default is None:
            raise self._missing(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "be a whole number, not negative")
        most = next((limit for part, limit in _MOST.items() if part in key), _LARGEST)
        if value > most:
            raise ArchitectureError(f"{self.origin}: {key!r} must be at most {most:,}, got {value:,}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.integer(key, default)
        if value < 1:
            raise ArchitectureError(f"{self.origin}: {key!r} must be at least 1, got {value}")
        return value

    def layer_count(self) -> int:
        return self.positive("num_hidden_layers")

    def layer_indices(self, key: str) -> frozenset[int] | None:
        """A list of layer numbers, or None where the key is missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(index, int) for index in value):
            raise self._wrong(key, "list layer numbers")
        return frozenset(value)

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if self.has(key) else None

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self._given(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "be true or false")
        return value

    def number(self, key: str) -> float:
        value = self._given(key, None)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LARGEST:
            raise self._wrong(key, "be a positive number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._given(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "be a string")
        return value

    def kinds(self, key: str, layers: int, allowed: Iterable[str], default: list[str] | None = None) -> list[str]:
        """One of the `allowed` kinds per layer: an unknown kind of layer must not be priced as another."""
        kinds = self.per_layer(key, layers, default)
        unknown = sorted({str(kind) for kind in kinds} - set(allowed))
        if unknown:
            raise ArchitectureError(f"{self.origin}: {key!r} has unknown kinds {unknown}; known: {', '.join(allowed)}")
        return kinds

    def per_layer(self, key: str, layers: int, default: list[Any] | None = None) -> list[Any]:
        """A list with one entry per layer. Longer lists are cut: the rest describes MTP layers."""
        value = self._given(key, default)
        if not isinstance(value, list) or len(value) < layers:
            raise ArchitectureError(f"{self.origin}: {key!r} must list at least {layers} layers, got {value!r}")
        return value[:layers]

    def section(self, key: str) -> Config:
        value = self._given(key, None)
        if not isinstance(value, Mapping):
            raise self._wrong(key, "be an object")
        return Config(origin=f"{self.origin}: {key}", values=value)
