"""`NAME.policy.json`: written by `specmargin plan --policy`, read by a live engine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from specmargin.acceptance.calibration import Logistic
from specmargin.acceptance.schema import CalibratorFile, Probability
from specmargin.errors import EngineError
from specmargin.files import read_text
from specmargin.live.settings_schema import Count, Range, Ranges
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import ScheduledDepth
from specmargin.policies.study.lookahead import LookAhead
from specmargin.schema import StrictModel, first_complaint

Seconds = Annotated[float, Field(ge=0.0)]


class TableFile(StrictModel):
    """The plan's grid: verify steps without and with their experts, drafting, and what fits a CUDA graph."""

    rest_by_batch_depth: list[list[Seconds]]
    draft_by_batch_depth: list[list[Seconds]]
    expert_seconds: list[Seconds]
    expert_step: Annotated[float, Field(gt=0.0)]
    effective_by_depth: list[Seconds]
    by_pass: bool
    graph_depth_by_batch: list[Count]

    @classmethod
    def of(cls, table: PriceTable) -> TableFile:
        return cls(
            rest_by_batch_depth=[_rounded(row) for row in table.rest_seconds[:, :, 0]],
            draft_by_batch_depth=[_rounded(row) for row in table.draft_seconds[:, :, 0]],
            expert_seconds=_rounded(table.expert_seconds),
            expert_step=table.expert_step,
            effective_by_depth=_rounded(table.effective_by_depth),
            by_pass=table.by_pass,
            graph_depth_by_batch=table.graph_depth_by_batch.tolist(),
        )

    @property
    def table(self) -> PriceTable:
        return PriceTable.of(
            rest_seconds=np.array(self.rest_by_batch_depth),
            draft_seconds=np.array(self.draft_by_batch_depth),
            expert_seconds=np.array(self.expert_seconds),
            expert_step=self.expert_step,
            effective_by_depth=np.array(self.effective_by_depth),
            by_pass=self.by_pass,
            graph_depth_by_batch=np.array(self.graph_depth_by_batch),
        )


class LookAheadFile(StrictModel):
    depth_by_batch: list[Count]
    rate_by_batch: list[Seconds]
    next_acceptance: list[Probability]

    @classmethod
    def of(cls, ahead: LookAhead) -> LookAheadFile:
        return cls(
            depth_by_batch=ahead.depth_by_batch.tolist(),
            rate_by_batch=_rounded(ahead.rate_by_batch),
            next_acceptance=_rounded(ahead.next_acceptance),
        )

    @property
    def look_ahead(self) -> LookAhead:
        return LookAhead(
            depth_by_batch=np.array(self.depth_by_batch),
            rate_by_batch=np.array(self.rate_by_batch),
            option_by_batch=np.ones((len(self.rate_by_batch), 2)),  # unused: the engine does not stop drafts early
            next_acceptance=np.array(self.next_acceptance),
        )


def schedule_of(ranges: list[Range], name: str = "schedule") -> ScheduledDepth:
    """`[[first, last, depth], …]` with vLLM's rules: gaps and the tail keep the depth of the previous range."""
    depths = np.zeros(max(last for _, last, _ in ranges) + 1, dtype=np.int64)
    for first, _, depth in sorted(ranges):
        depths[first:] = depth
    return ScheduledDepth(name=name, depth_by_batch=depths)


class PolicyFile(StrictModel):
    """All inputs of a controller, computed in advance: the engine only looks values up."""

    schema_: Literal["specmargin.policy/2"] = Field(alias="schema", default="specmargin.policy/2")
    model: str
    drafter: str
    device: str
    context: Annotated[float, Field(ge=0.0)]
    sources: dict[str, str]
    table: TableFile
    survival: list[Probability]
    schedule: Ranges
    candidates: list[Count] | None = None  # depths that the controller may choose; None: all
    graph_depths: list[Count]  # depths that are worth a CUDA graph: best at some batch and a plausible acceptance
    calibrator: CalibratorFile | None = None
    look_ahead: LookAheadFile | None = None

    @model_validator(mode="after")
    def _fits(self) -> PolicyFile:
        depths = len(self.table.effective_by_depth)
        if depths < 2 or len(self.table.rest_by_batch_depth) < 2 or len(self.table.expert_seconds) < 2:
            raise ValueError("table: must hold at least one sequence and one draft token")
        for name in ("rest_by_batch_depth", "draft_by_batch_depth"):
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


def _rounded(values: Iterable[float]) -> list[float]:
    """Six significant digits: prices are less accurate than that, and the file stays small."""
    return [float(f"{value:.6g}") for value in values]
