"""`NAME.policy.json`: written by `specmargin plan --policy`, read by a live engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from specmargin.acceptance.calibration import Logistic
from specmargin.acceptance.schema import CalibratorFile, Probability
from specmargin.errors import EngineError
from specmargin.files import read_text
from specmargin.live.settings_schema import Count, Range, Ranges, depths_by_batch
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import ScheduledDepth
from specmargin.schema import StrictModel, first_complaint

Seconds = Annotated[float, Field(ge=0.0)]


class TableFile(StrictModel):
    """The plan's grid, by batch and depth from 0: a `PriceTable` of one context."""

    rest_seconds: list[list[Seconds]]
    draft_seconds: list[list[Seconds]]
    expert_seconds: list[Seconds]
    expert_step: Annotated[float, Field(gt=0.0)]
    effective_by_depth: list[Seconds]
    by_pass: bool
    graph_depth_by_batch: list[Count]

    @classmethod
    def of(cls, table: PriceTable) -> TableFile:
        values = {name: getattr(table, name) for name in cls.model_fields}
        for name in ("rest_seconds", "draft_seconds"):
            values[name] = values[name][:, :, 0]
        return cls(**{name: rounded(value) for name, value in values.items()})

    @property
    def table(self) -> PriceTable:
        values: dict[str, Any] = {n: np.array(value) if isinstance(value, list) else value for n, value in self}
        return PriceTable.of(**values)


class GateFile(StrictModel):
    """What a gate of the drafts is expected to give."""

    graph_depths: list[Count]  # that it would draft at some batch
    gain_by_batch: list[Seconds]  # goodput over that of the best depth with whole drafts, minus 1


def schedule_of(ranges: list[Range], name: str = "schedule") -> ScheduledDepth:
    """`[[first, last, depth], …]`; beyond the last one its depth is kept."""
    depths = depths_by_batch(ranges, max(last for _, last, _ in ranges))
    return ScheduledDepth(name=name, depth_by_batch=np.array(depths, dtype=np.int64))


class PolicyFile(StrictModel):
    """All inputs of a controller, computed in advance: the engine only looks values up."""

    schema_: Literal["specmargin.policy/3"] = Field(alias="schema", default="specmargin.policy/3")
    model: str
    drafter: str
    device: str
    context: Annotated[float, Field(ge=0.0)]
    sources: dict[str, str]
    table: TableFile
    survival: list[Probability]
    schedule: Ranges
    candidates: list[Count] | None = None  # depths that the controller may choose; None: all
    ranks: Annotated[int, Field(ge=1)] = 1  # data-parallel; batches of the table are those of one of them
    graph_depths: list[Count]  # depths that are worth a CUDA graph: best at some batch and a plausible acceptance
    calibrator: CalibratorFile | None = None
    gate: GateFile | None = None

    @model_validator(mode="after")
    def _fits(self) -> PolicyFile:
        depths = len(self.table.effective_by_depth)
        if depths < 2 or len(self.table.rest_seconds) < 2 or len(self.table.expert_seconds) < 2:
            raise ValueError("table: must hold at least one sequence and one draft token")
        for name in ("rest_seconds", "draft_seconds"):
            rows = getattr(self.table, name)
            if len(rows) != len(self.table.graph_depth_by_batch) or any(len(row) != depths for row in rows):
                raise ValueError(f"table.{name}: needs a row per batch, each as long as effective_by_depth")
        if not self.survival:
            raise ValueError("survival must not be empty")
        return self

    @property
    def logistic(self) -> Logistic | None:
        file = self.calibrator
        return None if file is None else Logistic(weights=np.array(file.weights), depths=file.depths)


def read_policy(path: Path) -> PolicyFile:
    try:
        text = read_text(path, EngineError)
    except EngineError as error:
        raise EngineError(f"policy {error}") from None
    return parse_policy(text, str(path))


def parse_policy(text: str, source: str) -> PolicyFile:
    try:
        return PolicyFile.model_validate_json(text)
    except ValidationError as error:
        raise EngineError(
            f"policy {source}: {first_complaint(error)}; `specmargin plan MODEL --gpu GPU --policy FILE` writes one"
        ) from None


def policy_text(file: PolicyFile) -> str:
    return json.dumps(file.model_dump(by_alias=True), ensure_ascii=False) + "\n"


def rounded(value: Any) -> Any:
    """Arrays as lists of six significant digits: prices are less accurate than that, and the file stays small."""
    if isinstance(value, np.ndarray):
        return [rounded(one) for one in value.tolist()] if value.ndim == 1 else [rounded(row) for row in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
