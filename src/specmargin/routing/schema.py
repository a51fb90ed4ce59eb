"""The file of a routing profile, `NAME.routing.json`: small, versioned, with its counts and its uncertainty.

Probabilities are stored as square roots in whole numbers (16 bits for one position, 8 bits for longer runs, at a few
run lengths, log misses interpolated between them), deflated, in base64: about 0.1 MB per category for 48 layers of 256
experts, and distinct experts within 0.1% of the counts.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from specmargin.architecture.types import ExpertPool
from specmargin.errors import RoutingError
from specmargin.files import read_text
from specmargin.routing.local import LocalRouting, log_miss, mixed
from specmargin.schema import StrictModel, first_complaint
from specmargin.sources import Source, SourceKind
from specmargin.step import FloatArray, IntArray

_LEVELS = {"u2": 65535, "u1": 255}
_LEAST = 1e-9  # log miss of an expert that is never touched
#: Of one category, 128 MB: 900 experts in 90 layers with runs of 64 have 5 million.
MOST_PROBABILITIES = 16_000_000

Positive = Annotated[int, Field(gt=0)]


class CurveFile(StrictModel):
    """Distinct experts over the mean layer, at each number of positions, with the standard error."""

    positions: list[int]
    mean: list[float]
    standard_error: list[float]


class CategoryFile(StrictModel):
    rounds: Positive
    positions: Positive
    requests: Positive
    popularity: str  # (layers, experts), all positions
    hit_of_one: str  # (layers, experts), first positions of runs
    hit_of_runs: str  # (knots after the first, layers, experts)
    repulsion: list[list[float]]  # (runs, batches): how experts of a run covary; see LocalRouting.variance
    overlap_by_lag: list[list[float]]  # (lags, layers): experts that two positions of a run share
    depth: CurveFile
    width: CurveFile
    decay_by_layer: list[float]  # share falls as exp(−decay · rank / experts)


class RoutingFile(StrictModel):
    schema_: Literal["specmargin.routing/1"] = Field(alias="schema")
    name: str
    experts: Positive
    experts_per_token: Positive
    layers: Positive
    longest_run: Positive
    knots: list[Positive]
    provenance: str
    categories: dict[str, CategoryFile]

    @property
    def pool(self) -> ExpertPool:
        return ExpertPool(experts=self.experts, experts_per_token=self.experts_per_token)

    @property
    def probabilities(self) -> int:
        """Numbers that the arrays of one category, or of a mix, hold in memory."""
        return self.longest_run * self.layers * self.experts

    def source(self, detail: str) -> Source:
        return Source(kind=SourceKind.MEASURED, detail=f"routing captured ({self.provenance}), {detail}")

    def category(self, name: str) -> LocalRouting:
        category = self.categories[name]
        return LocalRouting(
            name=f"{self.name}:{name}",
            source=self.source(f"{name}, {category.rounds:,} rounds of {category.requests:,} requests"),
            pool=self.pool,
            popularity_by_layer_expert=decoded(category.popularity, "u2", (self.layers, self.experts)),
            log_miss_by_run_layer_expert=self._log_miss(category),
            measured_repulsion=np.array(category.repulsion, dtype=np.float64),
            neighbour_overlap_by_layer=np.array(category.overlap_by_lag[0], dtype=np.float64),
            identified=True,
            captured_run=self.longest_run,
        )

    def profile(self, weights: dict[str, float] | None = None) -> LocalRouting:
        """A mix of all categories, weighted by their rounds, or of those in `weights`."""
        if weights is not None and not sum(weights.values()) > 0:
            raise RoutingError(f"routing profile {self.name}: no category has a weight")
        weights = weights or {name: float(category.rounds) for name, category in self.categories.items()}
        unknown = [name for name in weights if name not in self.categories]
        if unknown:
            names = ", ".join(self.categories)
            raise RoutingError(f"routing profile {self.name} has no category {unknown[0]!r}; it has: {names}")
        if len(weights) == 1:
            return self.category(next(iter(weights)))
        total = sum(weights.values())
        shares = ", ".join(f"{name} {weight / total:.0%}" for name, weight in weights.items())
        parts = {name: self.category(name) for name in weights}
        return mixed(parts, weights, name=self.name, source=self.source(f"mixed: {shares}"))

    def _log_miss(self, category: CategoryFile) -> FloatArray:
        shape = (self.layers, self.experts)
        first = decoded(category.hit_of_one, "u2", shape)
        others = decoded(category.hit_of_runs, "u1", (len(self.knots) - 1, *shape))
        at_knots = np.maximum(log_miss(np.concatenate([first[np.newaxis], others])), _LEAST)
        at_knots = np.maximum.accumulate(at_knots, axis=0)
        return _interpolated(np.array(self.knots), at_knots, self.longest_run)


def knots_up_to(longest: int) -> list[int]:
    knots = [*range(1, 11), 12, 16, 24, 32, 48, 64]
    return [*(knot for knot in knots if knot < longest), longest]


def _interpolated(knots: IntArray, at_knots: FloatArray, longest: int) -> FloatArray:
    """Values at every run length, by powers of it between the knots."""
    if knots.size == 1:
        return at_knots
    runs = np.arange(1, longest + 1)
    low = np.minimum(np.searchsorted(knots, runs, side="right") - 1, knots.size - 2)
    fraction = (np.log(runs / knots[low]) / np.log(knots[low + 1] / knots[low]))[:, np.newaxis, np.newaxis]
    return np.asarray(at_knots[low] ** (1.0 - fraction) * at_knots[low + 1] ** fraction)


def encoded(probability: FloatArray, kind: Literal["u1", "u2"]) -> str:
    whole = np.round(np.sqrt(np.clip(probability, 0.0, 1.0)) * _LEVELS[kind]).astype(f"<{kind}")
    return base64.b64encode(zlib.compress(whole.tobytes(), 9)).decode()


def decoded(text: str, kind: Literal["u1", "u2"], shape: tuple[int, ...]) -> FloatArray:
    array_bytes = int(np.prod(shape)) * np.dtype(f"<{kind}").itemsize
    try:
        # Not more than the array needs: a small file may expand to gigabytes of zeros.
        unpacked = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), array_bytes + 1)
        whole = np.frombuffer(unpacked, dtype=f"<{kind}").reshape(shape)
    except (ValueError, zlib.error) as error:
        raise RoutingError(f"an array of {shape} cannot be decoded ({error})") from None
    return np.asarray((whole / _LEVELS[kind]) ** 2)


def read_routing(path: Path, *, most: int = MOST_PROBABILITIES) -> RoutingFile:
    return parse_routing(read_text(path, RoutingError), str(path), most=most)


def parse_routing(text: str, origin: str, *, most: int = MOST_PROBABILITIES) -> RoutingFile:
    """`most`: probabilities of a category that are read, checked before memory is taken for them."""
    try:
        file = RoutingFile.model_validate_json(text)
        if file.knots[:1] != [1] or file.knots != sorted(set(file.knots)) or file.knots[-1] != file.longest_run:
            raise RoutingError(f"knots: must rise from 1 to longest_run, got {file.knots[:20]}")
        if file.probabilities > most:
            raise RoutingError(
                f"longest_run × layers × experts is {file.probabilities:,}, and at most {most:,} probabilities are "
                f"read: profile shorter runs (--longest-run)"
            )
        for name in file.categories:
            file.category(name)
    except (ValueError, IndexError) as error:
        fault = first_complaint(error) if isinstance(error, ValueError) else str(error)
        raise RoutingError(f"{origin}: {fault}; `specmargin profile routing` writes such files") from None
    except RoutingError as error:
        raise RoutingError(f"{origin}: {error}") from None
    return file


def as_text(file: RoutingFile) -> str:
    return json.dumps(file.model_dump(by_alias=True), ensure_ascii=False) + "\n"
