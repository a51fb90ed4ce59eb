"""Schema of a device file. Unknown fields are refused."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from specmargin.schema import StrictModel

ArithmeticName = Literal["fp32", "bf16", "fp8", "int8", "fp4", "dp4a"]


class DeviceTable(StrictModel):
    title: str
    aliases: list[str] = Field(default_factory=list)
    memory_bytes: PositiveFloat
    bandwidth_bytes_per_second: PositiveFloat
    operations_per_second: dict[ArithmeticName, PositiveFloat]
    link_bytes_per_second: PositiveFloat
    link_latency_seconds: float = Field(ge=0)
    network_bytes_per_second: PositiveFloat | None = None
    gpus_per_node: PositiveInt
    architecture: str | None = None
    multiprocessors: PositiveInt | None = None
    source: str

    @model_validator(mode="after")
    def _require_bf16(self) -> DeviceTable:
        if "bf16" not in self.operations_per_second:
            raise ValueError("operations_per_second needs at least bf16")
        return self
