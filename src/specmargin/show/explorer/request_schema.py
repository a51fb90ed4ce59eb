"""The request of the web page and of `report`: a scenario, and a load or the batch that figures mark."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from specmargin.answers.request_schema import DEFAULT_DEPTH, LOAD, DepthField, ScenarioRequest
from specmargin.limits import MAX_BATCH
from specmargin.verbs.plan.request_schema import (
    RANGE_RATIO,
    ConcurrencyField,
    GpuHourField,
    InputField,
    OutputField,
    PlanRequest,
    RangeField,
    RateField,
    TpotField,
)


class PageRequest(ScenarioRequest):
    batch: Annotated[
        int, Field(ge=1, le=MAX_BATCH, description="Batch size marked in figures and used in the text."), LOAD.as_("N")
    ] = 16
    concurrency: ConcurrencyField = None
    qps: RateField = None
    isl: InputField = None
    osl: OutputField = None
    range_ratio: RangeField = RANGE_RATIO
    tpot_slo: TpotField = None
    depth: DepthField = DEFAULT_DEPTH
    gpu_hour_price: GpuHourField = None

    @model_validator(mode="after")
    def _whole_load(self) -> PageRequest:
        if self.concurrency is not None and self.qps is not None:
            raise ValueError("give one load: --concurrency or --qps")
        if (self.concurrency is not None or self.qps is not None) and (self.isl is None or self.osl is None):
            raise ValueError("a load needs --isl and --osl (input and output tokens per request)")
        return self

    def as_plan(self) -> PlanRequest:
        """The same question to `plan`. A load determines batch and context."""
        fields = {name: getattr(self, name) for name in (*ScenarioRequest.model_fields, *_PLANNED)}
        if self.concurrency is None and self.qps is None:
            fields |= {"isl": None, "osl": None, "at_batch": self.batch}
        elif self.isl is not None and self.osl is not None:
            fields["context"] = round(self.isl + self.osl / 2.0)
        unset = {"memory_utilization"} - self.model_fields_set  # the engine's own share
        return PlanRequest.model_construct(_fields_set=fields.keys() - unset, **fields)


_PLANNED = ("concurrency", "qps", "isl", "osl", "range_ratio", "tpot_slo", "depth", "gpu_hour_price")
