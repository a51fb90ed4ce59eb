"""The scenario file of `simulate` and the grid file of `sweep` (TOML). Unknown fields are refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from specmargin.answers.request_schema import ScenarioRequest, parse_number
from specmargin.errors import ScenarioError
from specmargin.files import origin, read_toml
from specmargin.schema import StrictModel, first_complaint
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.results import Slo
from specmargin.simulator.traces import read_trace
from specmargin.simulator.workload import (
    Arrivals,
    Category,
    ClosedLoop,
    FixedLength,
    Length,
    LognormalLength,
    Poisson,
    RateSchedule,
    UniformLength,
    Workload,
)

SIMULATION = "specmargin.simulation/1"
SWEEP = "specmargin.sweep/1"
_MOST_CELLS = 1_000_000


class LengthFile(StrictModel):
    """`tokens`; or `ln_mean` and `ln_sd` (lognormal); or `least` and `most` alone (uniform)."""

    tokens: int | None = Field(default=None, ge=1)
    ln_mean: float | None = None
    ln_sd: float | None = Field(default=None, ge=0)
    least: int | None = Field(default=None, ge=1)
    most: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_kind(self) -> LengthFile:
        lognormal = self.ln_mean is not None and self.ln_sd is not None
        uniform = self.least is not None and self.most is not None and self.ln_mean is None
        if (self.tokens is not None) + lognormal + uniform != 1:
            raise ValueError("a length is a number, {ln_mean, ln_sd} or {least, most}")
        return self

    def length(self) -> Length:
        if self.tokens is not None:
            return FixedLength(tokens=self.tokens)
        if self.ln_mean is not None and self.ln_sd is not None:
            most = 131_072 if self.most is None else self.most
            return LognormalLength(ln_mean=self.ln_mean, ln_sd=self.ln_sd, least=self.least or 1, most=most)
        return UniformLength(least=self.least or 1, most=self.most or 1)


def _fixed_length(given: Any) -> Any:
    """A number alone, or text such as `4k`."""
    number = parse_number(given)
    return {"tokens": number} if isinstance(number, int) and not isinstance(number, bool) else given


LengthField = Annotated[LengthFile, BeforeValidator(_fixed_length)]  # a number alone is a fixed length
_PROMPT, _OUTPUT = LengthFile(tokens=1000), LengthFile(tokens=200)


class CategoryFile(StrictModel):
    """A kind of request. `acceptance` and `routing` as the options of `plan` take them."""

    name: str = Field(min_length=1)
    weight: float = Field(default=1.0, ge=0)
    acceptance: str | None = None
    routing: str | None = None
    prompt: LengthField | None = None
    output: LengthField | None = None

    def category(self) -> Category:
        return Category(
            name=self.name,
            weight=self.weight,
            prompt=None if self.prompt is None else self.prompt.length(),
            output=None if self.output is None else self.output.length(),
        )


class WorkloadFile(StrictModel):
    """One of: users (a closed loop), requests_per_second, hours with rates (a schedule), trace (a file)."""

    users: int | None = Field(default=None, ge=1)
    requests_per_second: float | None = Field(default=None, gt=0)
    burst: int = Field(default=1, ge=1)
    requests: int | None = Field(default=None, ge=1)
    hours: list[float] | None = None
    rates: list[float] | None = None
    trace: str | None = None
    prompt: LengthField = _PROMPT
    output: LengthField = _OUTPUT
    categories: tuple[CategoryFile, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> WorkloadFile:
        given = [self.users is not None, self.requests_per_second is not None, self.hours is not None, self.trace]
        if sum(map(bool, given)) != 1:
            raise ValueError("give one of users, requests_per_second, hours (with rates) or trace")
        if self.hours is not None and self.rates is None:
            raise ValueError("hours needs rates: requests per second at each hour")
        if (self.users or self.requests_per_second) and self.requests is None:
            raise ValueError("give the number of requests")
        return self

    def workload(self, folder: Path) -> Workload:
        categories = tuple(each.category() for each in self.categories) or (Category(name="all"),)
        names = [category.name for category in categories]
        if len(set(names)) != len(names):
            raise ScenarioError(f"workload: two categories have the same name ({', '.join(names)})")
        prompt, output = self.prompt.length(), self.output.length()
        return Workload(arrivals=self._arrivals(folder), prompt=prompt, output=output, categories=categories)

    def _arrivals(self, folder: Path) -> Arrivals:
        if self.trace is not None:
            return read_trace(folder / self.trace)
        if self.hours is not None and self.rates is not None:
            return RateSchedule(hours=tuple(self.hours), requests_per_second=tuple(self.rates))
        requests = self.requests or 1
        if self.users is not None:
            return ClosedLoop(users=self.users, requests=requests)
        rate = self.requests_per_second or 0.0
        return Poisson(requests_per_second=rate, requests=requests, burst=self.burst)


class EngineFile(StrictModel):
    max_num_seqs: int = Field(default=256, ge=1, le=65_536)
    max_num_batched_tokens: int = Field(default=8192, ge=1)
    block_tokens: int = Field(default=16, ge=1)
    kv_blocks: int | None = Field(default=None, ge=1)
    switch_ms: float = Field(default=0.0, ge=0)

    def settings(self) -> EngineSettings:
        return EngineSettings(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_tokens=self.block_tokens,
            kv_blocks=self.kv_blocks,
            switch_seconds=self.switch_ms / 1e3,
        )


class SloFile(StrictModel):
    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)

    def slo(self) -> Slo | None:
        if self.ttft_ms is None and self.tpot_ms is None:
            return None
        ttft, tpot = (None if value is None else value / 1e3 for value in (self.ttft_ms, self.tpot_ms))
        return Slo(ttft_seconds=ttft, tpot_seconds=tpot)


class SimulationFile(StrictModel):
    """One run. `bank`: a folder of captured rounds to replay; else rounds are drawn from acceptance curves."""

    schema_: Literal["specmargin.simulation/1"] = Field(default="specmargin.simulation/1", alias="schema")
    scenario: ScenarioRequest
    workload: WorkloadFile
    engine: EngineFile = EngineFile()
    policy: str = "controller"
    max_depth: int = Field(default=4, ge=1, le=64)
    bank: str | None = None
    slo: SloFile = SloFile()
    gpu_hour_price: float | None = Field(default=None, gt=0)
    seed: int = Field(default=0, ge=0)

    def description(self) -> dict[str, Any]:
        """All fields, defaults included: they identify a cell of a sweep."""
        return self.model_dump(mode="json", by_alias=True)


class SweepFile(StrictModel):
    """A base run and, under `grid`, lists of values for dotted names in it: every combination is a cell."""

    schema_: Literal["specmargin.sweep/1"] = Field(default="specmargin.sweep/1", alias="schema")
    base: dict[str, Any]
    grid: dict[str, list[Any]]

    def cells(self, source: str) -> list[SimulationFile]:
        count = 1
        for name, values in self.grid.items():
            if not values:
                raise ScenarioError(f"{source}: grid.{name} has no values")
            count *= len(values)
        if count > _MOST_CELLS:
            raise ScenarioError(f"{source}: {count:,} cells exceed the limit of {_MOST_CELLS:,}")
        return [self._cell(source, values) for values in itertools.product(*self.grid.values())]

    def _cell(self, source: str, values: tuple[Any, ...]) -> SimulationFile:
        described = json.loads(json.dumps(self.base))
        for name, value in zip(self.grid, values, strict=True):
            _set(described, name, value, source)
        return parse_simulation(described, source)


def _set(described: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Set a dotted name such as `workload.categories.0.weight`; parts index tables and lists."""
    *path, last = name.split(".")
    node: Any = described
    for part in path:
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                raise ScenarioError(f"{source}: grid.{name} asks for {part!r} of a list of {len(node)}")
            node = node[int(part)]
        else:
            node = node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise ScenarioError(f"{source}: grid.{name} goes through {part!r}, which is a plain value")
    if isinstance(node, list):
        raise ScenarioError(f"{source}: grid.{name} must end at a field of a table")
    node[last] = value


def parse_simulation(described: dict[str, Any], source: str) -> SimulationFile:
    try:
        return SimulationFile.model_validate(described)
    except ValidationError as error:
        raise ScenarioError(f"{source}: {first_complaint(error)}") from None


def read_simulation(path: Path) -> SimulationFile:
    return parse_simulation(read_toml(path, ScenarioError), origin(path))


def read_sweep(path: Path) -> list[SimulationFile]:
    return parse_sweep(read_toml(path, ScenarioError), origin(path))


def parse_sweep(described: dict[str, Any], source: str) -> list[SimulationFile]:
    try:
        grid = SweepFile.model_validate(described)
    except ValidationError as error:
        raise ScenarioError(f"{source}: {first_complaint(error)}") from None
    return grid.cells(source)
