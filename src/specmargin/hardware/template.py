"""A documented device file to start from: `specmargin gpus --template`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# One comment per field of `DeviceTable` (a test compares the two).
COMMENTS = {
    "title": "Shown in tables and reports.",
    "aliases": "Other names, in lower case. Bundled devices only; a file is named by its path.",
    "memory_bytes": "Memory of one GPU. SI units everywhere: 24e9 is 24 GB.",
    "bandwidth_bytes_per_second": "Peak memory bandwidth of one GPU.",
    "operations_per_second": "Peak dense rates of the matrix units: bf16 (required), fp32, fp8, int8, fp4. Datasheets\n"
    "# often state sparse rates: halve them. A format that is missing is converted and multiplied in bf16. dp4a:\n"
    "# integer dot products of the vector units, about twice the fp32 vector rate (llama.cpp); bf16 if missing.",
    "link_bytes_per_second": "Between GPUs of one node, per direction: NVLink, or PCIe (4.0 x16: 32e9, 5.0 x16: 64e9).",
    "link_latency_seconds": "Latency of a small collective: about 5e-6 over NVLink, 15e-6 over PCIe.",
    "network_bytes_per_second": "Network per GPU and direction, between nodes. Leave it out where there is none.",
    "gpus_per_node": "GPUs that the link connects; more than these use the network.",
    "architecture": "Generation as compilers name it, by which engines choose kernels: sm_90, gfx1151, apple9.",
    "multiprocessors": "Multiprocessors (SMs), compute units or Xe cores: how many blocks of threads run at once.",
    "source": "Where the figures come from; shown with every answer.",
}
_SCALES = {"operations_per_second": 1e12, "link_latency_seconds": 1e-6}


def template(table: Mapping[str, Any], base: str) -> str:
    """The fields of a bundled device as a TOML file, each with a comment."""
    head = (
        f"# A device of your own. These are the figures of {base}: replace them, then give --gpu FILE.toml.\n"
        "# Usable rates are lower than these peaks; `specmargin measure` finds them on your machine.\n"
    )
    fields = {name: table[name] for name in COMMENTS if name in table and name != "aliases"}
    return head + "".join(f"\n# {COMMENTS[name]}\n{name} = {_value(name, value)}\n" for name, value in fields.items())


def _value(name: str, value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(name, rate)}" for key, rate in value.items()) + " }"
    if isinstance(value, int):
        return str(value)
    scale = _SCALES.get(name, 1e9)
    return f"{value / scale:g}e{len(str(int(scale))) - 1 if scale > 1 else -6}"
