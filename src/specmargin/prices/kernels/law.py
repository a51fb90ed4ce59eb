"""The form that measured kernels follow.

    t = fixed + unit · units + resident · residents + element · elements
        + ((bytes · (1 + crowding · crowded) / bandwidth)^p + (operations / rate)^p)^(1/p)

For routed experts: units are the distinct experts of the rank, residents all experts it holds (sorting and offsets),
elements the (position, expert) pairs times the hidden size (gathering and scattering activations). For GEMMs: elements
are the depth of the product. `crowded` rises from 0 to 1 as positions go from one to two for every expert of the
rank, where Triton falls back to an untuned configuration for most shapes and reads more slowly. p = 3 rounds the knee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from specmargin.step import FloatArray


def knee(memory: FloatArray, compute: FloatArray) -> FloatArray:
    """The longer of the two, rounded where they are equal (p = 3)."""
    return np.asarray(np.cbrt(memory**3 + compute**3))


def _zero() -> FloatArray:
    return np.zeros(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measurements behind a law. Errors are on held-out shapes."""

    version: str
    rows: int
    shapes: int
    median_error: float
    p90_error: float
    note: str = ""

    def __str__(self) -> str:
        if not self.shapes:
            return self.version
        return (
            f"{self.version} ({self.shapes} shapes, held-out error {self.median_error:.0%}, p90 {self.p90_error:.0%})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The features of a law, broadcast against each other."""

    bytes: FloatArray
    operations: FloatArray
    units: FloatArray = field(default_factory=_zero)
    residents: FloatArray = field(default_factory=_zero)
    elements: FloatArray = field(default_factory=_zero)
    crowded: FloatArray = field(default_factory=_zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    fixed_seconds: float
    bytes_per_second: float
    operations_per_second: float
    unit_seconds: float = 0.0
    resident_seconds: float = 0.0
    element_seconds: float = 0.0
    crowding: float = 0.0
    evidence: Evidence

    def __post_init__(self) -> None:
        for name in ("fixed_seconds", "unit_seconds", "resident_seconds", "element_seconds", "crowding"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a non-negative number, got {getattr(self, name)!r}")
        for name in ("bytes_per_second", "operations_per_second"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a positive number, got {getattr(self, name)!r}")

    def seconds(self, terms: Terms, parts: tuple[FloatArray, FloatArray] | None = None) -> FloatArray:
        """`parts`: as below, where the caller has them."""
        memory, compute = self.parts(terms) if parts is None else parts
        linear = (
            self.unit_seconds * terms.units
            + self.resident_seconds * terms.residents
            + self.element_seconds * terms.elements
        )
        return np.asarray(self.fixed_seconds + linear + knee(memory, compute))

    def parts(self, terms: Terms) -> tuple[FloatArray, FloatArray]:
        """Seconds of memory and of compute, each alone."""
        memory = terms.bytes * (1.0 + self.crowding * terms.crowded) / self.bytes_per_second
        return np.asarray(memory), np.asarray(terms.operations / self.operations_per_second)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Law:
        return cls(**{**values, "evidence": Evidence(**values["evidence"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Time by size where no formula fits (collectives change algorithm with size): points, log-interpolated."""

    sizes: tuple[float, ...]
    seconds_at: tuple[float, ...]
    evidence: Evidence

    def __post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.seconds_at):
            raise ValueError("sizes and seconds_at must have one entry per point")
        if not all(0.0 < value < math.inf for value in (*self.sizes, *self.seconds_at)):
            raise ValueError("sizes and seconds_at must be positive numbers")

    def seconds(self, size: FloatArray) -> FloatArray:
        """Flat below the first point; proportional to size beyond the last."""
        inside = np.exp(np.interp(np.log(np.maximum(size, 1.0)), np.log(self.sizes), np.log(self.seconds_at)))
        return np.asarray(inside * np.maximum(size / self.sizes[-1], 1.0))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Curve:
        points = {name: tuple(values[name]) for name in ("sizes", "seconds_at")}
        return cls(**points, evidence=Evidence(**values["evidence"]))
