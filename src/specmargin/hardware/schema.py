"""Schema of a device file. Unknown fields are refused."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from specmargin.hardware.generations import capability_of
from specmargin.schema import StrictModel

ArithmeticName = Literal["fp32", "bf16", "fp8", "int8", "fp4", "dp4a"]


#: By field: its unit, the least and the most that any device has, and what is usual.
_PLAUSIBLE = {
    "memory_bytes": ("bytes", (1e8, 1e14), (1e9, 2e12)),
    "bandwidth_bytes_per_second": ("bytes per second", (10e9, 100e12), (50e9, 20e12)),
    "operations_per_second": ("operations per second", (1e9, 1e18), (1e12, 2e16)),
    "link_bytes_per_second": ("bytes per second", (1e6, 100e12), (1e9, 2e12)),
    "network_bytes_per_second": ("bytes per second", (1e6, 100e12), (1e9, 2e12)),
}
_EXPONENTS = (9, 12, 6)  # of numbers that datasheets state in GB, TB or TFLOP, and MB


class DeviceTable(StrictModel):
    """A device: a table in catalog/devices.toml, NAME.toml in a user's folder gpus, or --gpu FILE.toml."""

    title: str = Field(min_length=1, description="Shown in tables and reports.")
    aliases: list[str] = Field(
        default_factory=list,
        description="Other names, in lower case. Bundled devices only: a user's is named by its file.",
    )
    memory_bytes: PositiveFloat = Field(description="Memory of one GPU. SI units everywhere: 24e9 is 24 GB.")
    bandwidth_bytes_per_second: PositiveFloat = Field(description="Peak memory bandwidth of one GPU.")
    operations_per_second: dict[ArithmeticName, PositiveFloat] = Field(
        description="Peak dense rates of the matrix units: bf16 (required), fp32, fp8, int8, fp4. Datasheets often "
        "state sparse rates: halve them. A format that is missing is converted and multiplied in bf16. dp4a: integer "
        "dot products of the vector units, about twice the fp32 vector rate (llama.cpp); bf16 if missing."
    )
    link_bytes_per_second: PositiveFloat = Field(
        description="Between GPUs of one node, per direction: NVLink, or PCIe (4.0 x16: 32e9, 5.0 x16: 64e9)."
    )
    link_latency_seconds: float = Field(
        ge=0, le=0.1, description="Latency of a small collective: about 5e-6 over NVLink, 15e-6 over PCIe."
    )
    network_bytes_per_second: PositiveFloat | None = Field(
        None, description="Network per GPU and direction, between nodes. Leave it out where there is none."
    )
    gpus_per_node: PositiveInt = Field(description="GPUs that the link connects; more than these use the network.")
    fabric: str | None = Field(
        None, description="Fabric with measured all-reduces over the link, where no kernel table has them."
    )
    architecture: str | None = Field(
        None, description="Generation as compilers name it, by which engines choose kernels: sm_90, gfx1151, apple9."
    )
    multiprocessors: PositiveInt | None = Field(
        None, description="Multiprocessors (SMs), compute units or Xe cores: how many blocks of threads run at once."
    )
    source: str = Field(min_length=1, description="Where the figures come from; shown with every answer.")

    @model_validator(mode="after")
    def _known_rates(self) -> DeviceTable:
        if "bf16" not in self.operations_per_second:
            raise ValueError("operations_per_second needs at least bf16")
        if (self.architecture or "").startswith("sm_") and capability_of(self.architecture or "") is None:
            raise ValueError(f"architecture: {self.architecture!r} is not a generation such as sm_90")
        return self

    @model_validator(mode="after")
    def _plausible_units(self) -> DeviceTable:
        for name, (unit, (least, most), usual) in _PLAUSIBLE.items():
            given = getattr(self, name)
            for part, value in given.items() if isinstance(given, dict) else (("", given),):
                if value is not None and not least <= value <= most:
                    field = f"{name}.{part}" if part else name
                    span = f"{unit} are expected, from {least:.0e} to {most:.0e}"
                    raise ValueError(f"{field} is {value:g}, but {span}{_meant(value, usual)}")
        return self


def _meant(value: float, usual: tuple[float, float]) -> str:
    """The number in SI that was probably meant; nothing where that cannot be told."""
    if usual[0] <= value / 1e3 <= usual[1]:
        return f"; probably {value / 1e3:g} was meant"
    fitting = (exponent for exponent in _EXPONENTS if usual[0] <= value * 10.0**exponent <= usual[1])
    return next((f"; probably {value:g}e{exponent} was meant" for exponent in fitting), "")
